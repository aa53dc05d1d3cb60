// Package frames reads and writes the frames of a session on a connection. A frame has a type, a length and a payload.
// A body consists of several frames and has a digest.
//
// Open frames.go first. body.go reads and writes bodies, and pulse.go sends keep-alive frames.
package frames
