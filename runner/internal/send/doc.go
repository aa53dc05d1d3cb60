// Package send uploads one file to a presigned URL. The URL is a secret: no error message contains it. A request and an
// open file come in, and the result goes out after the last attempt.
package send
