// Package worktime limits how long the runner itself works for a caller. The time in which it waits for the caller does
// not count, so a clock wraps the caller's streams.
package worktime
