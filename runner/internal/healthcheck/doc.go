// Package healthcheck retries a command until it succeeds, and counts retries as the task format defines. A request and
// a function that runs the command come in, and the result goes out.
package healthcheck
