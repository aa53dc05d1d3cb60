// Defines versions, errors, and the requests about phases, records and transfers.

package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Protocols lists the protocol versions of this runner. It includes earlier versions for an operator that was rolled back.
// Version 2 adds the `output`, `survey` and `send` requests, and the field `sent` of a download's sources. Version 3 adds guests
// (`admit` and `dismiss`) and the stdin of `start`. Version 4 adds checkpoints (`checkpoint`, `commit` and `restore`) and
// inspections (`baseline` and `inspect`). Version 5 adds requests to the agent host (`host`).
var Protocols = []int{1, 2, 3, 4, 5}

// CheckpointProtocols lists the protocol versions of a runner with --checkpoints. An operator without these versions has none in
// common with this runner, so the trial waits for a later operator. Such an operator would otherwise not find the records of steps
// that a checkpoint restored, and would consider the runner forged.
var CheckpointProtocols = []int{4, 5}

// Agree returns the highest version that both sides support, and false if they have no common version.
func Agree(supported, offered []int) (int, bool) {
	common := 0
	for _, each := range offered {
		if each > common && slices.Contains(supported, each) {
			common = each
		}
	}
	return common, common > 0
}

// These are the error codes of rejected and failed requests.
const (
	CodeProtocol = "Protocol"
	CodeNotFound = "NotFound"
	CodeConflict = "Conflict"
	CodeRefused  = "Refused"
	CodeUpload   = "Upload"
	CodeBody     = "Body"
	CodeDiskFull = "DiskFull"
	CodeNoHost   = "NoHost"
)

// Error is the error of a request or a phase.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Errorf returns an Error. It cuts long messages, because hostile file names can be part of them.
func Errorf(code, format string, args ...any) *Error {
	return &Error{code, Cut(fmt.Sprintf(format, args...), 2000)}
}

// Failure returns err as an Error with this code, or with CodeDiskFull if the disk or quota is full. If err is or wraps an Error,
// Failure returns that Error.
func Failure(code string, err error) *Error {
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		code = CodeDiskFull
	}
	return Errorf(code, "%v", err)
}

// Cut cuts text after limit bytes and appends "...". It replaces invalid UTF-8.
func Cut(text string, limit int) string {
	if len(text) > limit {
		text = text[:limit] + "..."
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// Decode decodes a request. It rejects unknown fields, because ignoring one could change the request's meaning.
func Decode(payload []byte, request any) error {
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(request); err != nil {
		return err
	}
	if decoder.More() {
		return errors.New("more than one JSON object")
	}
	return nil
}

// Seconds converts a number of seconds to a Duration. It limits the number so that the Duration does not overflow.
func Seconds(seconds float64) time.Duration {
	const most = float64(math.MaxInt64) / float64(time.Second) / 2
	return time.Duration(max(-most, min(most, seconds)) * float64(time.Second))
}

// Epoch returns a time in the protocol's form, which is seconds since the Unix epoch.
func Epoch(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// Op has the fields that all requests have.
type Op struct {
	Op string `json:"op"`
	ID string `json:"id"`
}

const maxID = 1024

// CheckID rejects an id that is empty or too long.
func (o Op) CheckID() error {
	if o.ID == "" || len(o.ID) > maxID {
		return fmt.Errorf("an id of %d bytes (1 to %d)", len(o.ID), maxID)
	}
	return nil
}

// Ack is the `ack` request. The caller has received the result of a finished operation.
type Ack struct{ Op }

// Check accepts every request.
func (a Ack) Check() error { return nil }

// Command has the fields that start, healthcheck and exec share.
type Command struct {
	Argv []string          `json:"argv"`
	User string            `json:"user"`
	Cwd  string            `json:"cwd"`
	Env  map[string]string `json:"env"`
}

// Check rejects an empty argv, NUL bytes and invalid names of variables.
func (c Command) Check() error {
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return errors.New("argv names no command")
	}
	for _, text := range append([]string{c.User, c.Cwd}, c.Argv...) {
		if strings.ContainsRune(text, 0) {
			return errors.New("a NUL in argv, user or cwd")
		}
	}
	for name, value := range c.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return fmt.Errorf("no variable can be called %q with that value", name)
		}
	}
	return nil
}

// File is the path of a file and the maximum number of bytes to read or write.
type File struct {
	Path     string `json:"path"`
	MaxBytes int64  `json:"maxBytes"`
}

// Start is the `start` request, which runs a command as a phase.
type Start struct {
	Op
	Command
	Stdin          string   `json:"stdin"` // a secret, which no record and no error contains
	TimeoutSeconds *float64 `json:"timeoutSeconds"`
	Remove         []string `json:"remove"`
	MakeExecutable string   `json:"makeExecutable"`
	Output         *File    `json:"output"`
	TailBytes      int      `json:"tailBytes"`
	ExitCodeFile   string   `json:"exitCodeFile"`
	Captures       []File   `json:"captures"`
	KillAtEnd      bool     `json:"killAtEnd"`
}

// maxStdin is the maximum number of bytes of a command's stdin.
const maxStdin = 256 << 10

func checkStdin(text string) error {
	if len(text) > maxStdin {
		return fmt.Errorf("stdin of %d bytes (at most %d)", len(text), maxStdin)
	}
	return nil
}

// Check rejects invalid fields.
func (s Start) Check() error {
	if err := checkStdin(s.Stdin); err != nil {
		return err
	}
	paths := append([]string{s.ExitCodeFile, s.MakeExecutable}, s.Remove...)
	if s.Output != nil {
		paths = append(paths, s.Output.Path)
		if s.Output.Path == "" || s.Output.MaxBytes < 0 {
			return errors.New("output needs a path and a limit")
		}
	}
	for _, capture := range s.Captures {
		paths = append(paths, capture.Path)
		if capture.Path == "" || capture.MaxBytes < 0 {
			return errors.New("a capture needs a path and a limit")
		}
	}
	if err := CheckPaths(paths); err != nil {
		return err
	}
	return s.Command.Check()
}

// CheckPaths rejects relative paths and paths with a NUL. It skips empty paths, which stand for omitted fields.
func CheckPaths(paths []string) error {
	for _, path := range paths {
		if path != "" && (path[0] != '/' || strings.ContainsRune(path, 0)) {
			return fmt.Errorf("not an absolute path: %q", path)
		}
	}
	return nil
}

// Captured is the content of a file, read when a phase finished.
type Captured struct {
	Base64    []byte `json:"base64"`
	Size      int64  `json:"size"`
	Truncated bool   `json:"truncated"`
	Changed   bool   `json:"changed,omitempty"` // the file changed while it was read, so it may never have had this content
}

// PhaseResult is the result of a start or an exec.
type PhaseResult struct {
	ExitCode        *int                 `json:"exitCode"`
	Signal          *int                 `json:"signal"`
	TimedOut        bool                 `json:"timedOut"`
	Error           *Error               `json:"error"`
	Tail            string               `json:"tail"`
	OutputBytes     int64                `json:"outputBytes"`
	OutputTruncated bool                 `json:"outputTruncated"`
	OOMKills        *int64               `json:"oomKills"`
	MemoryLimit     *int64               `json:"memoryLimit"`
	DurationSeconds float64              `json:"durationSeconds"`
	Captures        map[string]*Captured `json:"captures"`
}

// Healthcheck is the `healthcheck` request, which repeats a command until the command succeeds or has failed Retries times.
type Healthcheck struct {
	Op
	Command
	IntervalSeconds      float64 `json:"intervalSeconds"`
	TimeoutSeconds       float64 `json:"timeoutSeconds"`
	StartPeriodSeconds   float64 `json:"startPeriodSeconds"`
	StartIntervalSeconds float64 `json:"startIntervalSeconds"`
	Retries              int     `json:"retries"`
}

// NewHealthcheck returns a request with the defaults of optional fields.
func NewHealthcheck() Healthcheck {
	return Healthcheck{IntervalSeconds: 5, TimeoutSeconds: 30, StartIntervalSeconds: 5, Retries: 3}
}

// HealthcheckResult is the result of a healthcheck.
type HealthcheckResult struct {
	Healthy         bool    `json:"healthy"`
	Attempts        int     `json:"attempts"`
	ExitCode        *int    `json:"exitCode"`
	TimedOut        bool    `json:"timedOut"`
	Tail            string  `json:"tail"`
	Error           *Error  `json:"error"`
	DurationSeconds float64 `json:"durationSeconds"`
}

// Wait is the `wait` request, which returns the operation's record as soon as the operation is finished, or at the timeout.
type Wait struct {
	Op
	TimeoutSeconds float64 `json:"timeoutSeconds"`
}

// Check accepts every request.
func (w Wait) Check() error { return nil }

// Output is the `output` request, which returns a part of the output of a phase. The phase may still run.
type Output struct {
	Op
	Offset   int64 `json:"offset"`
	MaxBytes int64 `json:"maxBytes"`
}

// maxOutputPart is the maximum number of bytes of output in one response.
const maxOutputPart = 1 << 20

// Check rejects an offset or a size that is out of range.
func (o Output) Check() error {
	if o.Offset < 0 || o.MaxBytes < 1 || o.MaxBytes > maxOutputPart {
		return fmt.Errorf("offset %d (from 0), maxBytes %d (1 to %d)", o.Offset, o.MaxBytes, maxOutputPart)
	}
	return nil
}

// Printed is a part of a phase's output. Size is the size of the whole output, and From is the offset of the part. Both are in
// bytes.
type Printed struct {
	Size   int64  `json:"size"`
	From   int64  `json:"from"`
	Base64 []byte `json:"base64"`
}

// Note is the `note` request, which stores data of the operator as a record.
type Note struct {
	Op
	Data json.RawMessage `json:"data"`
}

const maxNote = 64 << 10

// Check rejects empty data and data that is too large to keep.
func (n Note) Check() error {
	if len(n.Data) == 0 || len(n.Data) > maxNote {
		return fmt.Errorf("data of %d bytes (1 to %d)", len(n.Data), maxNote)
	}
	return nil
}

// Directory is one directory of a `reset` request. If Keep is set, the directory keeps its contents.
type Directory struct {
	Path string `json:"path"`
	Mode uint32 `json:"mode"`
	User string `json:"user"`
	Keep bool   `json:"keep"`
}

// Reset is the `reset` request, which empties or creates directories, and sets their mode and owner.
type Reset struct {
	Op
	Directories []Directory `json:"directories"`
}

// Check rejects relative paths and invalid modes.
func (r Reset) Check() error {
	for _, directory := range r.Directories {
		if directory.Path == "" || CheckPaths([]string{directory.Path}) != nil || directory.Mode > 0o7777 {
			return fmt.Errorf("no directory can be %.200q with mode %o", directory.Path, directory.Mode)
		}
	}
	return nil
}

// ResetResult is the result of a reset.
type ResetResult struct {
	Error *Error `json:"error"`
}

// Upload is the `upload` request, which unpacks a tar stream into the directory Target.
type Upload struct {
	Op
	Target string `json:"target"`
	User   string `json:"user"`
}

// Check accepts every request, because the session resolves and checks the target.
func (u Upload) Check() error { return nil }

// UploadResult is the result of an upload.
type UploadResult struct {
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Source is one file or directory of a download or a survey.
type Source struct {
	Path    string   `json:"path"`
	Exclude []string `json:"exclude"`
	Sent    []string `json:"sent"` // files ("" is the source itself) to send without their contents
}

// Survey is the `survey` request, which lists at most Limit files of at least MinBytes.
type Survey struct {
	Op
	Sources  []Source `json:"sources"`
	MinBytes int64    `json:"minBytes"`
	Limit    int      `json:"limit"`
}

// Check rejects sources without an absolute path.
func (s Survey) Check() error { return checkSources(s.Sources) }

// LargeFile is a file that a survey found. Binary is true if its first bytes contain a NUL.
type LargeFile struct {
	Source int    `json:"source"`
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Binary bool   `json:"binary"`
}

// Send is the `send` request, which uploads a file to a presigned URL. Path is relative to Source, and "" is Source itself.
type Send struct {
	Op
	Source         string            `json:"source"`
	Path           string            `json:"path"`
	Size           int64             `json:"size"`
	URL            string            `json:"url"`
	Headers        map[string]string `json:"headers"`
	CA             string            `json:"ca"`
	TimeoutSeconds float64           `json:"timeoutSeconds"`
}

// Check rejects a relative source path and a negative size.
func (s Send) Check() error {
	if s.Source == "" || CheckPaths([]string{s.Source}) != nil || s.Size < 0 {
		return fmt.Errorf("nothing of %d bytes can be sent from %.200q", s.Size, s.Source)
	}
	return nil
}

// SendResult is the result of a send.
type SendResult struct {
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256"`
	Version string `json:"version"`
	Error   *Error `json:"error"`
}

// Download is the `download` request, which returns the sources as a tar stream.
type Download struct {
	Op
	Sources []Source `json:"sources"`
}

// Check rejects sources without an absolute path.
func (d Download) Check() error { return checkSources(d.Sources) }

func checkSources(sources []Source) error {
	for _, source := range sources {
		if source.Path == "" || CheckPaths([]string{source.Path}) != nil {
			return fmt.Errorf("the source %.200q is not an absolute path", source.Path)
		}
	}
	return nil
}

// SourceType is the type of a source, which is file, directory, missing or other.
type SourceType struct {
	Type string `json:"type"`
}

// User is the user as which PID 1 runs.
type User struct {
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
	Name string `json:"name"`
	Home string `json:"home"`
}

// Identity has the UID and group IDs of a user that a `hello` request named.
type Identity struct {
	UID  int   `json:"uid"`
	GIDs []int `json:"gids"`
}
