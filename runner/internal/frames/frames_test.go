package frames

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestFramesComeAsTheyWent(t *testing.T) {
	var stream bytes.Buffer
	large := strings.Repeat("x", MaxData)
	for _, payload := range []string{"", "{}", large} {
		if err := Write(&stream, Data, []byte(payload)); err != nil {
			t.Fatal(err)
		}
	}
	reader := NewReader(iotest.HalfReader(&stream))
	for _, wanted := range []string{"", "{}", large} {
		kind, length, err := reader.Next()
		payload, bad := reader.Payload()
		if kind != Data || length != len(wanted) || string(payload) != wanted || err != nil || bad != nil {
			t.Fatal(kind, length, err, bad)
		}
	}
	if _, _, err := reader.Next(); err != io.EOF {
		t.Error(err)
	}
}

func TestWhatIsNotReadIsSkipped(t *testing.T) {
	reader := NewReader(strings.NewReader("D\x00\x00\x00\x03abcJ\x00\x00\x00\x01{"))
	reader.Next()
	reader.Read(make([]byte, 1))
	if kind, length, err := reader.Next(); kind != JSON || length != 1 || err != nil {
		t.Error(kind, length, err)
	}
}

func TestBrokenFrames(t *testing.T) {
	for stream, wanted := range map[string]error{
		"":                         io.EOF,
		"J\x00":                    io.ErrUnexpectedEOF,
		"J\x00\x00\x00\x05abc":     io.ErrUnexpectedEOF,
		"X\x00\x00\x00\x00":        ErrBroken,
		"D\x00\x10\x00\x01":        ErrBroken,
		"J\x01\x00\x00\x01":        ErrBroken,
		"\xff\xff\xff\xff\xff\xff": ErrBroken,
	} {
		reader := NewReader(strings.NewReader(stream))
		_, _, err := reader.Next()
		if err == nil {
			_, err = reader.Payload()
		}
		if !errors.Is(err, wanted) {
			t.Errorf("%q: %v", stream, err)
		}
	}
}

func TestBodies(t *testing.T) {
	var stream bytes.Buffer
	content := strings.Repeat("0123456789", 100_000)
	writer := NewBodyWriter(&stream)
	io.Copy(writer, iotest.OneByteReader(strings.NewReader(content[:1000])))
	io.WriteString(writer, content[1000:])
	if err := writer.Finish(Trailer{Changed: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	body := NewBody(NewReader(bytes.NewReader(stream.Bytes())))
	if got, err := io.ReadAll(body); err != nil || string(got) != content || body.Verify() != nil || body.Trailer().Changed[0] != "a" {
		t.Error(len(got), err, body.Verify())
	}
	for _, change := range []int{6, stream.Len() / 2} { // offsets of bytes in which one bit is flipped
		spoilt := bytes.Clone(stream.Bytes())
		spoilt[change] ^= 1
		body := NewBody(NewReader(bytes.NewReader(spoilt)))
		if err := body.Rest(); err == nil && body.Verify() == nil {
			t.Error("not seen", change)
		}
	}
	cut := NewBody(NewReader(bytes.NewReader(stream.Bytes()[:stream.Len()-3])))
	if err := cut.Rest(); err != io.ErrUnexpectedEOF || cut.Verify() == nil {
		t.Error(err)
	}
	stray := NewBody(NewReader(strings.NewReader("J\x00\x00\x00\x02{}")))
	if err := stray.Rest(); !errors.Is(err, ErrBroken) {
		t.Error(err)
	}
}

// FuzzFrames reads arbitrary bytes as frames and as a body. It checks that reading ends, does not panic, and allocates no more
// memory than bytes arrived.
func FuzzFrames(f *testing.F) {
	for _, seed := range []string{
		"", "J\x00\x00\x00\x02{}", "D\x00\x00\x00\x03abcE\x00\x00\x00\x02{}", "D\x00\x00\x00\x00E\x00\x00\x00\x04null",
		"E\x00\x00\x00\x14{\"size\":3,\"sha256\":\"\"}", "J\x00\xff\xff\xff", "X\x00\x00\x00\x00", "E\x00\x00\x00\x01[",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		reader := NewReader(bytes.NewReader(stream))
		for {
			kind, length, err := reader.Next()
			if err != nil {
				break
			}
			payload, err := reader.Payload()
			if len(payload) > len(stream) || (err == nil && len(payload) != length) {
				t.Fatal(kind, length, len(payload), err)
			}
		}
		body := NewBody(NewReader(bytes.NewReader(stream)))
		if body.Rest() == nil {
			body.Verify()
		}
	})
}
