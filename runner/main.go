// Reads the command line and runs the subcommand.

package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"multistep.dev/runner/internal/asuser"
	"multistep.dev/runner/internal/call"
	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/serve"
	"multistep.dev/runner/internal/supervise"
	"multistep.dev/runner/internal/wire"
)

// version is set by the linker.
var version = "dev"

const usage = `usage: runner install DIR            copy this program to DIR/runner
       runner copy SOURCE TARGET     replace the contents of a directory with another's
       runner unpack DIR BASE64...   write the files of a tar.gz into a directory
       runner populate [SOURCE TARGET]...
                                    copy an image's directories into new volumes
       runner serve [--port N] [--socket NAME] [--default-user U] [--checkpoints]
                                    be PID 1 of a trial's container
       runner once --state DIR [--id ID]
                                    serve one session on stdin and stdout, in a service's container
       runner quell                  kill all other processes of the container, except PID 1 and exec sessions
       runner call [--socket NAME]   relay stdin and stdout to PID 1
       runner version                print version and protocols
`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "runner:", err)
		if errors.Is(err, syscall.EMFILE) {
			os.Exit(2) // the status of a Go program that gets no memory or thread, which the operator takes for a lack of resources
		}
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		args = []string{""}
	}
	switch args[0] {
	case "serve":
		kernel.Undumpable()
		return serve.Main(version, args[1:])
	case "call":
		kernel.Undumpable()
		return call.Main(args[1:])
	case "once":
		kernel.Undumpable()
		return serve.Once(version, args[1:])
	case "quell":
		return supervise.KillLeftovers()
	case "phase":
		kernel.Undumpable()
		return supervise.Main(args[1:])
	case "transfer":
		kernel.Undumpable()
		asuser.Main() // ignores the error, which means that PID 1 ended the transfer
		return nil
	case "install":
		return install(args[1:])
	case "copy":
		return copyTree(args[1:])
	case "unpack":
		return unpack(args[1:])
	case "populate":
		return populate(args[1:])
	case "version":
		_, err := fmt.Printf("runner %s protocols %v\n", version, wire.Protocols)
		return err
	}
	fmt.Fprint(os.Stderr, usage)
	os.Exit(2)
	return nil
}
