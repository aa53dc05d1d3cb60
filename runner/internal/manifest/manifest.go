// Defines the entries of a manifest and their order, and checks entries.

package manifest

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// These are the types of entries.
const (
	File      = "file"
	Directory = "directory"
	Symlink   = "symlink"
	Hardlink  = "hardlink"
	Fifo      = "fifo"
	Char      = "char"
	Block     = "block"
	Deleted   = "deleted"
)

// Version is the version of the manifest's format.
const Version = 1

// Header is the first line of a manifest. Previous is the digest of the manifest of the previous increment, or "" if this increment
// follows the image.
type Header struct {
	Version  int    `json:"version"`
	Previous string `json:"previous"`
}

// Text is a string of any bytes. In JSON it is a string, or {"base64": ...} if the bytes are not valid UTF-8.
type Text string

type encoded struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON encodes the text.
func (t Text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(encoded{[]byte(t)})
}

// UnmarshalJSON decodes the text.
func (t *Text) UnmarshalJSON(data []byte) error {
	if strings.HasPrefix(string(data), "{") {
		var value encoded
		err := json.Unmarshal(data, &value)
		*t = Text(value.Base64)
		return err
	}
	return json.Unmarshal(data, (*string)(t))
}

// Entry describes one path. Mode has the permission bits with setuid, setgid and sticky.
type Entry struct {
	Path   Text     `json:"path"` // absolute path
	Type   string   `json:"type"`
	Mode   uint32   `json:"mode"`
	UID    int      `json:"uid"`
	GID    int      `json:"gid"`
	MTime  Time     `json:"mtime,omitzero"`
	Size   int64    `json:"size,omitempty"`   // size of a file in bytes, including holes
	SHA256 string   `json:"sha256,omitempty"` // digest of a file's content, or of a sparse file's extents
	Link   Text     `json:"link,omitempty"`   // target of a symlink, or absolute path of the first name of a hardlink
	Linked bool     `json:"linked,omitempty"` // later entries of type hardlink can refer to this file
	Device []uint32 `json:"device,omitempty"` // major and minor number
	XAttrs []XAttr  `json:"xattrs,omitempty"` // sorted by name
	Sparse []Extent `json:"sparse,omitempty"` // the extents of a sparse file that contain data
	Holes  bool     `json:"holes,omitempty"`  // whether the file is sparse. If Sparse is empty, the whole file is a hole
	// Unchanged is set for a directory that is listed only because its content changed, and for an unchanged name (hard link) of a
	// file that is listed because of another name.
	Unchanged bool `json:"unchanged,omitempty"`
}

// XAttr is an extended attribute. Value is base64 in JSON.
type XAttr struct {
	Name  Text   `json:"name"`
	Value []byte `json:"value"`
}

// Extent is the offset and the length of a part of a sparse file, in bytes.
type Extent [2]int64

// Packed returns the number of bytes of the file's content in the stream.
func (e *Entry) Packed() int64 {
	if !e.Holes {
		return e.Size
	}
	total := int64(0)
	for _, extent := range e.Sparse {
		total += extent[1]
	}
	return total
}

// Time is a modification time. In JSON it is a string of seconds and nanoseconds since the Unix epoch.
type Time struct{ time.Time }

// MarshalJSON encodes the time.
func (t Time) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, `"%d.%09d"`, t.Unix(), t.Nanosecond()), nil
}

// UnmarshalJSON decodes the time.
func (t *Time) UnmarshalJSON(data []byte) error {
	seconds, fraction, _ := strings.Cut(strings.Trim(string(data), `"`), ".")
	whole, err := strconv.ParseInt(seconds, 10, 64)
	nanoseconds, bad := strconv.ParseInt(fraction, 10, 64)
	if err = errors.Join(err, bad); err != nil || nanoseconds < 0 || nanoseconds >= int64(time.Second) {
		return fmt.Errorf("no time: %.100s", data)
	}
	t.Time = time.Unix(whole, nanoseconds)
	return nil
}

// Compare orders paths as a walk does, with a directory before its content, and names by their bytes.
func Compare(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return rank(a[i]) - rank(b[i])
		}
	}
	return len(a) - len(b)
}

func rank(char byte) int {
	if char == '/' {
		return 0 // no name contains the byte 0
	}
	return int(char)
}

// Below returns whether path is the directory or a path in it.
func Below(path, directory []byte) bool {
	if len(directory) == 1 { // directory is "/"
		return true
	}
	n := len(directory)
	return len(path) >= n && string(path[:n]) == string(directory) && (len(path) == n || path[n] == '/')
}

// Check rejects an entry that no checkpoint can contain.
func (e *Entry) Check() error {
	if err := checkPath(string(e.Path)); err != nil {
		return err
	}
	if e.Mode > 0o7777 || e.Size < 0 || e.UID < 0 || e.GID < 0 {
		return errors.New("an impossible mode, size or owner")
	}
	switch e.Type {
	case File:
		return e.checkFile()
	case Hardlink:
		return checkPath(string(e.Link))
	case Symlink:
		if e.Link == "" || strings.ContainsRune(string(e.Link), 0) {
			return errors.New("a symlink without a target")
		}
	case Char, Block:
		if len(e.Device) != 2 {
			return errors.New("a device without a number")
		}
	case Directory, Fifo, Deleted:
	default:
		return fmt.Errorf("type %.100q", e.Type)
	}
	if e.Path == "/" && e.Type != Directory {
		return errors.New("the root is not a directory")
	}
	return nil
}

func (e *Entry) checkFile() error {
	if len(e.SHA256) != 2*sha256.Size || e.Path == "/" {
		return errors.New("a file without a digest")
	}
	end := int64(0)
	for _, extent := range e.Sparse {
		if !e.Holes || extent[0] < end || extent[1] < 1 || extent[1] > e.Size || extent[0] > e.Size-extent[1] {
			return errors.New("impossible extents")
		}
		end = extent[0] + extent[1]
	}
	return nil
}

func checkPath(path string) error {
	if path == "/" {
		return nil
	}
	if !strings.HasPrefix(path, "/") || strings.ContainsRune(path, 0) {
		return errors.New("not an absolute path")
	}
	for part := range strings.SplitSeq(path[1:], "/") {
		if part == "" || part == "." || part == ".." {
			return errors.New("a path with an empty name, . or ..")
		}
	}
	return nil
}
