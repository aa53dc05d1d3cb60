// Package healthcheck retries a command until it succeeds, and counts retries as the task format defines.
package healthcheck
