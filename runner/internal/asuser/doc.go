// Package asuser transfers files with the permissions of a user. Guests (processes of other containers, package guests)
// that may only act as this user need it. A child process of PID 1 switches to the user, as a phase's command does, and
// then opens all files. A thread of PID 1 with the user's filesystem credentials would be unsafe, because through the
// links in /proc/self/fd it could open all files that PID 1 has open.
//
//	PID 1 ── request, body of an upload, "merge" ──> stdin  ┐ runner transfer
//	      <── replies, body of a download ────────── stdout ┘ (the user)
//
// The user's processes cannot read the child's memory or open its descriptors, but they can kill and stop it. Open
// asuser.go, the side of PID 1, first. child.go is the child's side.
package asuser
