// Handles the requests that upload and download files, and those that reset directories.

package session

import (
	"errors"
	"io"
	"net"
	"strings"

	"multistep.dev/runner/internal/files"
	"multistep.dev/runner/internal/frames"
	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/records"
	"multistep.dev/runner/internal/send"
	"multistep.dev/runner/internal/wire"
)

// runtimePrefix at the start of an upload's target stands for the runtime directory.
const runtimePrefix = "$RUNTIME/"

func (s *Session) reset(request wire.Reset) error {
	return s.answerRecord(s.Store.Once(request.ID, request.Op.Op, func() (any, *wire.Error) {
		return wire.ResetResult{Error: s.resetAll(request.Directories)}, nil
	}))
}

func (s *Session) resetAll(directories []wire.Directory) *wire.Error {
	for _, directory := range directories {
		owner, err := s.Host.Users.Lookup(directory.User)
		if err != nil {
			return wire.Errorf("NoSuchUser", "%v", err)
		}
		if err := files.Reset(directory.Path, directory.Mode, owner, directory.Keep); err != nil {
			return wire.Failure("Reset", err)
		}
	}
	return nil
}

func (s *Session) upload(request wire.Upload) error {
	if record, found, refusal := s.Store.Find(request.ID, request.Op.Op); found {
		return s.answerRecord(record, refusal)
	}
	owner, err := s.Host.Users.Lookup(request.User)
	if err != nil {
		return s.refuse(wire.Errorf(wire.CodeUpload, "%v", err))
	}
	target, refusal := s.target(request)
	if refusal != nil {
		return s.refuse(refusal)
	}
	upload, err := files.NewUpload(target, owner)
	if err != nil {
		return s.refuse(wire.Failure(wire.CodeUpload, err))
	}
	var record records.Record
	began := kernel.CoarseTime()
	body, refusal, err := s.receive(upload)
	if err == nil && refusal == nil { // Once does nothing if another session created the record during the upload
		record, refusal = s.Store.Once(request.ID, request.Op.Op, func() (any, *wire.Error) { return merge(upload, body) })
		s.Inspector.Uploaded(target, began)
	}
	upload.Close() // before the response, after which the staging directory must not exist
	if err != nil {
		return err
	}
	return s.answerRecord(record, refusal)
}

// uploading is a files.Upload, which this process does, or an asuser.Upload, which a process of another user does.
type uploading interface {
	Unpack(stream io.Reader) error
	Merge() error
	Close() error
}

// downloading is a files.Download, which this process does, or an asuser.Download, which a process of another user does.
type downloading interface {
	Types() []wire.SourceType
	Send(stream io.Writer) (frames.Trailer, error)
	Close()
}

// target returns the absolute path of an upload's target, with runtimePrefix replaced.
func (s *Session) target(request wire.Upload) (string, *wire.Error) {
	place := request.Target
	if rest, found := strings.CutPrefix(place+"/", runtimePrefix); found {
		place = s.RuntimeDir + "/" + rest
	}
	if err := wire.CheckPaths([]string{place}); err != nil || place == "" {
		return "", wire.Errorf(wire.CodeProtocol, "the target %.200q is not an absolute path", request.Target)
	}
	return place, nil
}

// receive requests the body and unpacks it. The last result is set only if the session broke.
func (s *Session) receive(upload uploading) (*frames.Body, *wire.Error, error) {
	if err := s.answer(struct {
		OK      bool `json:"ok"`
		Proceed bool `json:"proceed"`
	}{answerOK, true}); err != nil {
		return nil, nil, err
	}
	body := frames.NewBody(s.frames)
	failure := upload.Unpack(body)
	if err := body.Rest(); err != nil {
		return nil, nil, err
	}
	if err := body.Verify(); err != nil { // reported before failure, because the caller can retry after a damaged transfer
		return nil, wire.Errorf(wire.CodeBody, "%v", err), nil
	}
	if failure != nil {
		return nil, wire.Failure(wire.CodeUpload, failure), nil
	}
	return body, nil, nil
}

// merge moves an upload that arrived intact into its target.
func merge(upload uploading, body *frames.Body) (any, *wire.Error) {
	if err := upload.Merge(); err != nil {
		return nil, wire.Failure(wire.CodeUpload, err)
	}
	return wire.UploadResult{Size: body.Size(), SHA256: body.SHA256()}, nil
}

func (s *Session) download(request wire.Download) error {
	return s.sendDownload(files.OpenDownload(request.Sources))
}

func (s *Session) sendDownload(download downloading) error {
	defer download.Close()
	if err := s.answer(struct {
		OK      bool              `json:"ok"`
		Sources []wire.SourceType `json:"sources"`
	}{answerOK, download.Types()}); err != nil {
		return err
	}
	return s.sendBody(download)
}

func (s *Session) survey(request wire.Survey) error {
	return s.answer(struct {
		OK    bool             `json:"ok"`
		Files []wire.LargeFile `json:"files"`
	}{answerOK, files.Large(request.Sources, request.MinBytes, request.Limit)})
}

func (s *Session) sendFile(request wire.Send) error {
	return s.startOnce(request.Op, func() any {
		file, err := files.OpenOne(request.Source, request.Path)
		if err != nil {
			return wire.SendResult{Error: wire.Errorf("Send", "%v", err)}
		}
		defer file.Close()
		return send.Run(request, file)
	})
}

// sendBody sends a download. The trailer reports errors of files. sendBody returns an error only if the stream broke.
func (s *Session) sendBody(download downloading) error {
	body := frames.NewBodyWriter(s.stream)
	trailer, err := download.Send(body)
	var broken net.Error
	if errors.As(err, &broken) || errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	if err != nil {
		trailer.Error = wire.Cut(err.Error(), 1000)
	}
	return body.Finish(trailer)
}
