package guests

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"multistep.dev/runner/internal/peer"
)

// connected returns the runner's end of a new socket pair.
func connected(t *testing.T) *net.UnixConn {
	t.Helper()
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(ends[1]) })
	file := os.NewFile(uintptr(ends[0]), "")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	return conn.(*net.UnixConn)
}

// serve reads until the connection is closed, as a session does.
func serve(c *Connection) {
	c.Read(make([]byte, 1))
	c.Leave()
}

func TestOnlyAnAdmissionLetsACallerConnect(t *testing.T) {
	all := New()
	if _, err := all.Connect(connected(t)); !errors.Is(err, peer.ErrElsewhere) {
		t.Error(err)
	}
	all.Admit("a", "", false)
	guest, err := all.Connect(connected(t))
	if err != nil {
		t.Fatal(err)
	}
	guest.Leave()
	all.Dismiss("a", true)
	if _, err := all.Connect(connected(t)); !errors.Is(err, peer.ErrElsewhere) {
		t.Error(err)
	}
}

func TestAFullHouseClosesTheOldestConnectionThatProvedNothing(t *testing.T) {
	all := New()
	all.Admit("a", "", false)
	admission := all.find("a")
	var guests []*Connection
	for number := range maxConnections {
		guest, err := all.Connect(connected(t))
		if err != nil {
			t.Fatal(err)
		}
		if number%2 == 0 && !guest.join("a", admission) {
			t.Fatal("not joined")
		}
		guests = append(guests, guest)
		go serve(guest)
	}
	for number := range maxConnections / 2 {
		late, err := all.Connect(connected(t))
		if err != nil || !late.join("a", admission) {
			t.Fatal(err)
		}
		go serve(late)
		<-guests[2*number+1].ended
		if guests[2*number+1].join("a", admission) {
			t.Error("a closed connection proved something")
		}
	}
	if _, err := all.Connect(connected(t)); err == nil {
		t.Error("a guest was closed for a caller")
	}
}

func TestNobodyJoinsAnAdmissionAfterItsDismissal(t *testing.T) {
	all := New()
	first := all.Admit("a", "", false)
	all.Admit("b", "", false)
	guest, err := all.Connect(connected(t))
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Leave()
	admission := all.find("a")
	all.Dismiss("a", false)
	if guest.join("a", admission) || admission.Context().Err() == nil {
		t.Error("joined")
	}
	if again := all.Admit("a", "", false); again == first || guest.join("a", admission) {
		t.Error("joined the dismissed admission of the same id")
	}
}

func TestADismissalWaitsForTheSessionsOfItsGuests(t *testing.T) {
	all := New()
	all.Admit("a", "", false)
	admission := all.find("a")
	guest, err := all.Connect(connected(t))
	if err != nil || !guest.join("a", admission) {
		t.Fatal(err)
	}
	dismissed := make(chan bool)
	go func() {
		found, _ := all.Dismiss("a", true)
		dismissed <- found
	}()
	<-admission.Context().Done()
	select {
	case <-dismissed:
		t.Error("a session is left")
	default:
	}
	guest.Leave()
	if !<-dismissed {
		t.Error("not found")
	}
}
