// Package peer authenticates callers to PID 1, and PID 1 to `runner call`.
//
// The kernel reports the PID of the process that connected, but that process may have exited and its PID may be reused.
// So PID 1 makes three checks. First, the PID must belong to a process without a parent in this PID namespace. This is
// true for an exec from outside, and never for a child of the container. Second, the caller must return a challenge in
// a message to which the kernel adds the sender's PID. Third, the PID must still belong to the same process. So the
// process that responds is the process that was checked. (A pidfd of the peer would also work, but needs Linux 6.5.)
package peer
