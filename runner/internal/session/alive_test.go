package session

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
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
	here, there := connected(t)
	here.SetWriteBuffer(progress)
	conn := &timeoutConn{here, time.Minute, 200 * time.Millisecond}
	slow := make(chan struct{})
	go func() {
		defer close(slow)
		buffer := make([]byte, progress)
		for total := 0; total < 1<<20; {
			time.Sleep(10 * time.Millisecond)
			n, err := there.Read(buffer)
			if err != nil {
				return
			}
			total += n
		}
	}()
	started := time.Now()
	if n, err := conn.Write(make([]byte, 1<<20)); err != nil || n != 1<<20 {
		t.Fatal(n, err)
	}
	if time.Since(started) < conn.writeTimeout {
		t.Error("the reader was not slow:", time.Since(started))
	}
	<-slow
	if _, err := conn.Write(make([]byte, 1<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
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
