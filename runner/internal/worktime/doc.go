// Package worktime limits how long the runner itself works for a caller. The time in which it waits for the caller does
// not count. A time limit comes in, and a context and a clock go out, which wraps the caller's streams.
package worktime
