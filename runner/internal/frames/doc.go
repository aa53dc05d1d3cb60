// Package frames implements a session's framing: type, length, payload, and bodies of several frames with a digest. The
// bytes of a connection come in and frames go out, or the reverse.
//
// Open frames.go first. body.go reads and writes bodies, and pulse.go sends keep-alive frames.
package frames
