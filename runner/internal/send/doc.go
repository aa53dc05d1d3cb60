// Package send uploads one file to a presigned URL. The URL is a secret, so no error message contains it.
package send
