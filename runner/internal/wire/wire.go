// Package wire has the requests and answers of the protocol as Go types.
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

// Protocols are the versions this runner speaks: an operator of an earlier release, after a rollback, must find its own here.
// 2 has output, survey, send, and sent files in a download.
var Protocols = []int{1, 2}

// Agree picks the highest version that both sides speak; false if there is none.
func Agree(offered []int) (int, bool) {
	common := 0
	for _, each := range offered {
		if each > common && slices.Contains(Protocols, each) {
			common = each
		}
	}
	return common, common > 0
}

// The codes of a refused request.
const (
	CodeProtocol = "Protocol"
	CodeNotFound = "NotFound"
	CodeConflict = "Conflict"
	CodeRefused  = "Refused"
	CodeUpload   = "Upload"
	CodeBody     = "Body"
	CodeDiskFull = "DiskFull"
)

// Error is how a request or a phase failed.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Errorf makes an Error. What a hostile file name can bring in is cut.
func Errorf(code, format string, args ...any) *Error {
	return &Error{code, Cut(fmt.Sprintf(format, args...), 2000)}
}

// Failure is an Error of that code, or one that says that the disk is full.
func Failure(code string, err error) *Error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		code = CodeDiskFull
	}
	return Errorf(code, "%v", err)
}

// Cut shortens text to at most limit bytes.
func Cut(text string, limit int) string {
	if len(text) > limit {
		text = text[:limit] + "..."
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// Decode reads a request; a field that is not known is an error, as it may have been meant to matter.
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

// Seconds turns a number of seconds into a Duration, without overflow.
func Seconds(seconds float64) time.Duration {
	const most = float64(math.MaxInt64) / float64(time.Second) / 2
	return time.Duration(max(-most, min(most, seconds)) * float64(time.Second))
}

// Epoch is a time as the protocol has it.
func Epoch(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// Op is what all requests have.
type Op struct {
	Op string `json:"op"`
	ID string `json:"id"`
}

const maxID = 1024

// CheckID refuses what is no id.
func (o Op) CheckID() error {
	if o.ID == "" || len(o.ID) > maxID {
		return fmt.Errorf("an id of %d bytes (1 to %d)", len(o.ID), maxID)
	}
	return nil
}

// Ack is the request of that name.
type Ack struct{ Op }

// Check has nothing to refuse.
func (a Ack) Check() error { return nil }

// Command is what start and healthcheck have in common.
type Command struct {
	Argv []string          `json:"argv"`
	User string            `json:"user"`
	Cwd  string            `json:"cwd"`
	Env  map[string]string `json:"env"`
}

// Check refuses what no kernel could run.
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

// File is a file with a limit.
type File struct {
	Path     string `json:"path"`
	MaxBytes int64  `json:"maxBytes"`
}

// Start is the request of that name.
type Start struct {
	Op
	Command
	TimeoutSeconds *float64 `json:"timeoutSeconds"`
	Remove         []string `json:"remove"`
	MakeExecutable string   `json:"makeExecutable"`
	Output         *File    `json:"output"`
	TailBytes      int      `json:"tailBytes"`
	ExitCodeFile   string   `json:"exitCodeFile"`
	Captures       []File   `json:"captures"`
	KillAtEnd      bool     `json:"killAtEnd"`
}

// Check refuses what cannot be meant.
func (s Start) Check() error {
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

// CheckPaths wants absolute paths; empty ones are those that were not given.
func CheckPaths(paths []string) error {
	for _, path := range paths {
		if path != "" && (path[0] != '/' || strings.ContainsRune(path, 0)) {
			return fmt.Errorf("not an absolute path: %q", path)
		}
	}
	return nil
}

// Captured is a file read at a phase's end.
type Captured struct {
	Base64    []byte `json:"base64"`
	Size      int64  `json:"size"`
	Truncated bool   `json:"truncated"`
	Changed   bool   `json:"changed,omitempty"` // while it was read, so that its content may never have been in the file
}

// PhaseResult is the result of a start.
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

// Healthcheck is the request of that name.
type Healthcheck struct {
	Op
	Command
	IntervalSeconds      float64 `json:"intervalSeconds"`
	TimeoutSeconds       float64 `json:"timeoutSeconds"`
	StartPeriodSeconds   float64 `json:"startPeriodSeconds"`
	StartIntervalSeconds float64 `json:"startIntervalSeconds"`
	Retries              int     `json:"retries"`
}

// NewHealthcheck has the defaults of the fields that may be left out.
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

// Wait is the request of that name.
type Wait struct {
	Op
	TimeoutSeconds float64 `json:"timeoutSeconds"`
}

// Check has nothing to refuse.
func (w Wait) Check() error { return nil }

// Output is the request of that name.
type Output struct {
	Op
	Offset   int64 `json:"offset"`
	MaxBytes int64 `json:"maxBytes"`
}

// maxOutputPart is what one answer to it may have.
const maxOutputPart = 1 << 20

// Check refuses what cannot be meant.
func (o Output) Check() error {
	if o.Offset < 0 || o.MaxBytes < 1 || o.MaxBytes > maxOutputPart {
		return fmt.Errorf("offset %d (from 0), maxBytes %d (1 to %d)", o.Offset, o.MaxBytes, maxOutputPart)
	}
	return nil
}

// Printed is a part of what a phase printed. Size: of all that there is; From: where the part begins in it.
type Printed struct {
	Size   int64  `json:"size"`
	From   int64  `json:"from"`
	Base64 []byte `json:"base64"`
}

// Note is the request of that name.
type Note struct {
	Op
	Data json.RawMessage `json:"data"`
}

const maxNote = 64 << 10

// Check refuses what is too large to be kept.
func (n Note) Check() error {
	if len(n.Data) == 0 || len(n.Data) > maxNote {
		return fmt.Errorf("data of %d bytes (1 to %d)", len(n.Data), maxNote)
	}
	return nil
}

// Directory is one of a reset.
type Directory struct {
	Path string `json:"path"`
	Mode uint32 `json:"mode"`
	User string `json:"user"`
	Keep bool   `json:"keep"`
}

// Reset is the request of that name.
type Reset struct {
	Op
	Directories []Directory `json:"directories"`
}

// Check refuses what can be no directory.
func (r Reset) Check() error {
	for _, directory := range r.Directories {
		if directory.Path == "" || CheckPaths([]string{directory.Path}) != nil || directory.Mode > 0o7777 {
			return fmt.Errorf("no directory can be %.200q with mode %o", directory.Path, directory.Mode)
		}
	}
	return nil
}

// ResetResult is its result.
type ResetResult struct {
	Error *Error `json:"error"`
}

// Upload is the request of that name.
type Upload struct {
	Op
	Target string `json:"target"`
	User   string `json:"user"`
}

// Check has nothing to refuse: what the target means, the session knows.
func (u Upload) Check() error { return nil }

// UploadResult is its result.
type UploadResult struct {
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Source is one of a download.
type Source struct {
	Path    string   `json:"path"`
	Exclude []string `json:"exclude"`
	Sent    []string `json:"sent"` // files of it ("" for itself) that are told without their contents
}

// Survey is the request of that name.
type Survey struct {
	Op
	Sources  []Source `json:"sources"`
	MinBytes int64    `json:"minBytes"`
	Limit    int      `json:"limit"`
}

// Check refuses sources without a path.
func (s Survey) Check() error { return checkSources(s.Sources) }

// LargeFile is one that a survey found. Binary: it has a NUL in its beginning.
type LargeFile struct {
	Source int    `json:"source"`
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Binary bool   `json:"binary"`
}

// Send is the request of that name.
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

// Check refuses what can be no file.
func (s Send) Check() error {
	if s.Source == "" || CheckPaths([]string{s.Source}) != nil || s.Size < 0 {
		return fmt.Errorf("nothing of %d bytes can be sent from %.200q", s.Size, s.Source)
	}
	return nil
}

// SendResult is its result.
type SendResult struct {
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256"`
	Version string `json:"version"`
	Error   *Error `json:"error"`
}

// Download is the request of that name.
type Download struct {
	Op
	Sources []Source `json:"sources"`
}

// Check refuses sources without a path.
func (d Download) Check() error { return checkSources(d.Sources) }

func checkSources(sources []Source) error {
	for _, source := range sources {
		if source.Path == "" || CheckPaths([]string{source.Path}) != nil {
			return fmt.Errorf("the source %.200q is no absolute path", source.Path)
		}
	}
	return nil
}

// SourceType is what a source turned out to be: file, directory, missing or other.
type SourceType struct {
	Type string `json:"type"`
}

// User is whom PID 1 runs as.
type User struct {
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
	Name string `json:"name"`
	Home string `json:"home"`
}
