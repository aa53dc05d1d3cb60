// The code of the child, which performs one upload or download as the user when PID 1 requests it.

package asuser

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"multistep.dev/runner/internal/files"
	"multistep.dev/runner/internal/frames"
	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/wire"
)

// Arguments is the command line of a child process.
var Arguments = []string{"runner", "transfer"}

// Main runs the child's command, `runner transfer`. It returns an error if PID 1 ended the transfer early.
func Main() error {
	requests := frames.NewReader(os.Stdin)
	var work job
	if err := read(requests, &work); err != nil {
		return err
	}
	if err := work.User.Become(); err != nil {
		return answer(reply{Error: wire.Errorf(wire.CodeRefused, "cannot transfer files as user %s: %v", work.User, err)})
	}
	kernel.Undumpable() // repeated, because with some values of fs.suid_dumpable, the switch to the user makes the process dumpable
	if work.Target != "" {
		return upload(work, requests)
	}
	return download(work)
}

func read(requests *frames.Reader, request any) error {
	kind, _, err := requests.Next()
	if err == nil && kind != frames.JSON {
		err = fmt.Errorf("frame %c instead of a request", kind)
	}
	if err != nil {
		return err
	}
	payload, err := requests.Payload()
	if err != nil {
		return err
	}
	return json.Unmarshal(payload, request)
}

func answer(value reply) error { return frames.WriteJSON(os.Stdout, frames.JSON, value) }

// failed sends an error that names the target and the user, because the same transfer might succeed as the user of PID 1.
func failed(work job, err error) error {
	return answer(reply{Error: wire.Failure(wire.CodeUpload, fmt.Errorf("cannot upload to %.1000q as user %s: %w", work.Target, work.User, err))})
}

func upload(work job, requests *frames.Reader) error {
	upload, err := files.NewUpload(work.Target, work.User)
	if err != nil {
		return failed(work, err)
	}
	defer upload.Close()
	if err := answer(reply{}); err != nil {
		return err
	}
	body := frames.NewBody(requests)
	failure := upload.Unpack(body)
	if err := body.Rest(); err != nil {
		return err
	}
	if failure != nil {
		return failed(work, failure)
	}
	if err := answer(reply{}); err != nil {
		return err
	}
	if err := read(requests, &struct{}{}); err != nil { // PID 1 requests the merge only after it has verified the body
		return err
	}
	if err := upload.Merge(); err != nil {
		return failed(work, err)
	}
	if err := answer(reply{}); err != nil {
		return err
	}
	io.Copy(io.Discard, os.Stdin)
	return nil
}

func download(work job) error {
	download := files.OpenDownload(work.Sources)
	defer download.Close()
	if err := answer(reply{Sources: download.Types()}); err != nil {
		return err
	}
	body := frames.NewBodyWriter(os.Stdout)
	trailer, err := download.Send(body)
	if err != nil {
		return err
	}
	return body.Finish(trailer)
}
