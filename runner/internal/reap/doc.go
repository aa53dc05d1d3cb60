// Package reap implements PID 1's only wait loop, which starts children, reports their wait status, and reaps orphans.
// The status of a child arrives on the channel that Start returned.
package reap
