package session

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// connected returns both ends of a unix socket.
func connected(t *testing.T) (here, there *net.UnixConn) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dialed, err := net.Dial("unix", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialed.Close(); accepted.Close() })
	return accepted.(*net.UnixConn), dialed.(*net.UnixConn)
}

func TestAWriteEndsWhenTheCallerReadsNothingButNotWhileItReadsSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		conn := &timeoutConn{here, time.Hour, time.Minute}
		const parts = 10
		go func() {
			for range parts {
				time.Sleep(time.Minute - 1)
				io.ReadFull(there, make([]byte, progress))
			}
		}()
		if n, err := conn.Write(make([]byte, parts*progress)); err != nil || n != parts*progress {
			t.Fatal(n, err)
		}
		if n, err := conn.Write(make([]byte, progress)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(n, err)
		}
	})
}

func TestAnEndOfTheSendingDirectionIsSeenBeforeItIsRead(t *testing.T) {
	here, there := connected(t)
	io.WriteString(there, "a further request")
	if closed(here) {
		t.Error("closed while it is open")
	}
	there.CloseWrite()
	if !closed(here) {
		t.Error("its end is not seen")
	}
}
