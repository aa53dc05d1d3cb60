// Package asuser transfers files with the permissions of a user, for guests (processes of other containers, package
// guests) that may act as this user only.
//
// A child process of PID 1 switches to the user, as a phase's command does, and then opens all files. A thread of PID 1
// with the user's filesystem credentials would be unsafe: through the links in /proc/self/fd it could open all files
// that PID 1 has open.
//
//	PID 1 ── request, body of an upload, "merge" ──> stdin  ┐ runner transfer
//	      <── replies, body of a download ────────── stdout ┘ (the user)
//
// The user's processes cannot read the child's memory or open its descriptors, but they can kill and stop it.
//
// Open asuser.go first: it is the side of PID 1. child.go is the child's side.
package asuser
