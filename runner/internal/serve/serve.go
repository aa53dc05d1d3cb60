// Starts PID 1, finds out who the caller of each connection is, and starts its session.

package serve

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"multistep.dev/runner/internal/checkpoint"
	"multistep.dev/runner/internal/files"
	"multistep.dev/runner/internal/guests"
	"multistep.dev/runner/internal/inspect"
	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/peer"
	"multistep.dev/runner/internal/phase"
	"multistep.dev/runner/internal/ready"
	"multistep.dev/runner/internal/reap"
	"multistep.dev/runner/internal/records"
	"multistep.dev/runner/internal/sealed"
	"multistep.dev/runner/internal/session"
	"multistep.dev/runner/internal/users"
	"multistep.dev/runner/internal/wire"
)

const (
	defaultPort = 9876
	// garbagePercent is this process's GOGC value. It keeps the heap small, because the heap counts against the trial's memory
	// limit.
	garbagePercent = 40
	runtimeDir     = "/run/multistep"
	// captureBudget is the limit, in bytes, of all files that phases capture. Base64 adds a third. The rest of the 8 MiB of a frame
	// is for the other fields of a hello response.
	captureBudget = 4 << 20
)

// Main runs the command `runner serve`.
func Main(version string, args []string) error {
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	port := flags.Int("port", defaultPort, "of the readiness probe")
	socket := flags.String("socket", peer.DefaultSocket, "abstract name on which sessions are served")
	user := flags.String("default-user", os.Getenv("MULTISTEP_DEFAULT_USER"), "of phases that name none")
	checkpoints := flags.Bool("checkpoints", false, "list the files of the image, to which checkpoints are relative")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := kernel.KeepDescriptors(); err != nil {
		return err
	}
	kernel.KeepLimits()
	forgetSignals()
	debug.SetGCPercent(garbagePercent)
	runner, err := newRunner(version, *user, makeRuntimeDir)
	if err != nil {
		return err
	}
	runner.RootPrograms = inspect.RootPrograms("", map[string]string{"PATH": os.Getenv("PATH")})
	runner.Tracker = checkpoint.Untracked()
	if *checkpoints {
		runner.Tracker = checkpoint.Track("/", runner.Own)
		runner.Protocols = wire.CheckpointProtocols
	}
	probes, err := net.Listen("tcp", ":"+strconv.Itoa(*port))
	if err != nil {
		return err
	}
	callers, err := net.ListenUnix("unix", peer.Address(*socket))
	if err != nil {
		return err
	}
	failed := make(chan error, 4)
	go func() { failed <- awaitFreeze(longestFreeze, time.Now, time.Sleep) }()
	go func() { failed <- awaitMove() }()
	go func() { failed <- ready.Serve(probes, runner.Store.Settled) }()
	go func() { failed <- accept(callers, runner) }()
	return <-failed
}

// forgetSignals catches and discards the signals that would end the process. It does not ignore them, because children inherit
// ignored signals. A phase can send SIGTERM as the kubelet does, and the exit code does not show the sender. Only a process outside
// of the container can send SIGKILL to PID 1, as the kubelet does after SIGTERM. So the exit code of a container that was ended
// from outside is always that of SIGKILL.
func forgetSignals() {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGALRM, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for range caught {
		}
	}()
}

// newRunner returns a runner. place creates the runtime directory and returns its path.
func newRunner(version, defaultUser string, place func() (string, error)) (*session.Runner, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	workdir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	directory, err := place()
	if err != nil {
		return nil, err
	}
	key, err := sealed.FromEnvironment()
	if err != nil {
		return nil, err
	}
	instance := make([]byte, 16)
	rand.Read(instance)
	return &session.Runner{
		Host: &phase.Host{
			Reaper: reap.New(), Users: users.System, DefaultUser: defaultUser, Workdir: workdir, Env: os.Environ(),
			Captures: files.NewCaptures(captureBudget), Null: null,
		},
		Store: records.NewStore(), Guests: guests.New(), Inspector: inspect.New(""), Key: key, Version: version, Instance: hex.EncodeToString(instance),
		PodUID: os.Getenv("MULTISTEP_POD_UID"), RuntimeDir: directory, StartedAt: time.Now(),
		Own: session.Own(directory), Protocols: wire.Protocols,
	}, nil
}

// makeRuntimeDir creates the directory of the runner's own files. It can trust the path, because no other process runs in the
// container yet.
func makeRuntimeDir() (string, error) {
	err := os.MkdirAll(runtimeDir, 0o755)
	if err == nil {
		if err = os.Chmod(runtimeDir, 0o755); err == nil {
			return runtimeDir, nil
		}
	}
	for _, parent := range []string{os.TempDir(), "/"} {
		directory, failure := os.MkdirTemp(parent, "multistep-")
		if failure == nil {
			return directory, os.Chmod(directory, 0o755)
		}
		err = errors.Join(err, failure)
	}
	return "", fmt.Errorf("no place for a runtime directory: %w", err)
}

func accept(callers *net.UnixListener, runner *session.Runner) error {
	for {
		conn, err := callers.AcceptUnix()
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
		caller, err := peer.Identify(conn)
		if errors.Is(err, peer.ErrElsewhere) {
			receive(runner, conn)
			continue
		}
		if err != nil { // not in a goroutine, because the number of rejected callers is unlimited
			session.Refuse(conn, err)
			continue
		}
		go talk(runner, caller, conn)
	}
}

// receive starts the session of a caller from another container. The caller either relays sealed messages of the operator (package
// sealed), or is a guest that the operator admitted (package guests).
func receive(runner *session.Runner, conn *net.UnixConn) {
	if runner.AcceptSealed(conn) {
		return
	}
	guest, err := runner.Guests.Connect(conn)
	if err != nil {
		session.Refuse(conn, err)
		return
	}
	go runner.ServeGuest(guest)
}

func talk(runner *session.Runner, caller peer.Caller, conn *net.UnixConn) {
	if err := caller.Challenge(conn); err != nil {
		session.Refuse(conn, err)
		return
	}
	if err := runner.Serve(conn); err != nil { // log writes to stderr, the container's log
		log.Printf("session of process %d broke: %v", caller.PID, err)
	}
}
