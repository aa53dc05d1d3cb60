package main

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/netutil"

	"multistep.dev/egress/internal/control"
	"multistep.dev/egress/internal/firewall"
	"multistep.dev/egress/internal/names"
	"multistep.dev/egress/internal/policy"
	"multistep.dev/egress/internal/proxy"
	"multistep.dev/egress/internal/refusals"
)

const (
	proxyPort    = 15001
	namesPort    = 15053
	resolverFile = "resolv.conf"
	runner       = "/multistep/runner" // beside this program in the operator's image
	readyTimeout = 30 * time.Second

	mostNameConnections = 64
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("usage: egress serve|call|ready")
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		log.Fatalf("egress %s: %v", os.Args[1], err)
	}
}

func run(command string, arguments []string) error {
	flags := flag.NewFlagSet(command, flag.ExitOnError)
	socket := flags.String("socket", control.Socket, "control socket")
	switch command {
	case "serve":
		options := options{}
		flags.StringVar(&options.gateway, "gateway", "", "HOST:PORT of the model gateway")
		flags.StringVar(&options.probes, "probes", "", "ports of the kubelet's probes, with commas")
		flags.StringVar(&options.runnerDir, "runner", "", "directory to install the runner in, once")
		flags.StringVar(&options.resolver, "resolver", "/etc/resolv.conf", "file that names the pod's resolver, read at the first start only")
		_ = flags.Parse(arguments)
		options.socket, options.node = *socket, os.Getenv("NODE_IP")
		return serve(options)
	case "call":
		_ = flags.Parse(arguments)
		return call(*socket)
	case "ready":
		_ = flags.Parse(arguments)
		_, err := control.Dial(*socket, readyTimeout)
		return err
	}
	return errors.New("no such command; there are serve, call and ready")
}

type options struct {
	socket, gateway, probes, resolver, runnerDir, node string
}

// sidecar holds the parts of the running sidecar to which a change of the policy applies.
type sidecar struct {
	firewall *firewall.Firewall
	names    *names.Names
	proxy    *proxy.Proxy
	refused  *refusals.Counter
	gateway  *policy.Endpoint
}

func serve(given options) error {
	go exitOnSignal(func() {})
	installed := installRunner(given.runnerDir)
	wall, err := newFirewall(given)
	if err != nil {
		return err
	}
	gateway, err := endpoint(given.gateway)
	if err != nil {
		return err
	}
	resolver, err := resolverConfig(given.resolver, filepath.Dir(given.socket))
	if err != nil {
		return err
	}
	own := &sidecar{firewall: wall, refused: &refusals.Counter{}, gateway: gateway}
	own.proxy = &proxy.Proxy{Refused: own.refused}
	own.names = names.New(resolver, own.proxy.Rules, own.refused)
	own.proxy.Names = own.names
	if err := own.force(policy.Policy{Mode: policy.NoNetwork}); err != nil {
		return err
	}
	if err := own.listen(); err != nil {
		return err
	}
	if err := <-installed; err != nil {
		return err
	}
	listener, err := control.Listen(given.socket)
	if err != nil {
		return err
	}
	log.Printf("no network, until the operator allows one")
	return (&control.Control{Boot: rand.Text(), Switch: own.change}).Serve(listener)
}

// exitOnSignal exits with status 128 + N at signal N. No process of another container can send a signal to the sidecar, so such a
// status shows the operator that the sidecar was ended from outside of the pod. Without a handler, Go's status would be 2, as after
// a panic, which the traffic of the pod's processes could cause. exitOnSignal calls ready when it handles signals.
func exitOnSignal(ready func()) {
	received := make(chan os.Signal, 1)
	signal.Notify(received, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	ready()
	number, _ := (<-received).(syscall.Signal)
	log.Printf("ended by %v", number)
	os.Exit(128 + int(number))
}

// installRunner installs the runner in a volume of the pod, unless the volume has it. It returns at once, and the channel receives
// the result. An init container could do the same, but would delay the pod's start.
func installRunner(directory string) <-chan error {
	result := make(chan error, 1)
	if _, err := os.Stat(filepath.Join(directory, filepath.Base(runner))); directory == "" || err == nil {
		result <- nil
		return result
	}
	go func() {
		out, err := exec.Command(runner, "install", directory).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s install %s: %w: %s", runner, directory, err, out)
		}
		result <- err
	}()
	return result
}

// change puts a policy in force and returns the attempts that were refused since the previous change.
func (s *sidecar) change(wanted policy.Policy) (refusals.Report, error) {
	started := time.Now()
	if err := s.firewall.Count(s.refused); err != nil {
		return refusals.Report{}, err
	}
	if err := s.force(wanted); err != nil {
		return refusals.Report{}, err
	}
	if err := s.firewall.ForgetLookups(); err != nil {
		log.Print(err) // the policy is in force, but lookups on sockets from before keep their old redirection
	}
	log.Printf("%s, %d hosts, gateway %v, in %v", wanted.Mode, len(wanted.Hosts), wanted.Gateway, time.Since(started).Round(time.Microsecond))
	return s.refused.Take(), nil
}

func (s *sidecar) force(wanted policy.Policy) error {
	rules, err := policy.Compile(wanted, s.gateway)
	if err != nil {
		return err
	}
	if err := s.firewall.Apply(rules); err != nil {
		return err
	}
	s.proxy.Apply(rules)
	s.names.Restrict(rules)
	return nil
}

// listen starts the proxy and the name server on the loopback addresses to which the firewall redirects.
func (s *sidecar) listen() error {
	for _, host := range []string{"127.0.0.1", "::1"} {
		listener, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(proxyPort)))
		if err != nil && host == "::1" {
			return nil // the node has no IPv6
		}
		if err != nil {
			return err
		}
		go s.proxy.Serve(listener)
		if err := s.serveNames(net.JoinHostPort(host, strconv.Itoa(namesPort))); err != nil {
			return err
		}
	}
	return nil
}

// serveNames starts the name server at an address. The number of TCP connections is limited, because each can make the server
// allocate 64 KiB for a query.
func (s *sidecar) serveNames(address string) error {
	packets, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for _, server := range []*dns.Server{
		{PacketConn: packets, Handler: s.names},
		{
			Listener: netutil.LimitListener(listener, mostNameConnections), Handler: s.names,
			MaxTCPQueries: 8, IdleTimeout: func() time.Duration { return 2 * time.Second }, // so that others do not wait for long
		},
	} {
		go func() { log.Print("the name server ended: ", server.ActivateAndServe()) }()
	}
	return nil
}

func newFirewall(given options) (*firewall.Firewall, error) {
	node, err := netip.ParseAddr(given.node)
	if err != nil {
		return nil, fmt.Errorf("NODE_IP: %w", err)
	}
	wall := &firewall.Firewall{Nodes: []netip.Addr{node.Unmap()}, Proxy: proxyPort, Names: namesPort}
	if gateway := defaultGateway("/proc/net/route"); gateway.IsValid() && gateway != wall.Nodes[0] {
		wall.Nodes = append(wall.Nodes, gateway) // the source of the kubelet's connections in a bridge network
	}
	for each := range strings.SplitSeq(given.probes, ",") {
		port, err := strconv.ParseUint(each, 10, 16)
		if err != nil && given.probes != "" {
			return nil, fmt.Errorf("--probes: %w", err)
		}
		if err == nil {
			wall.Probes = append(wall.Probes, uint16(port))
		}
	}
	return wall, nil
}

// defaultGateway returns the gateway of the default route in the kernel's table, or the zero Addr if there is none.
func defaultGateway(table string) netip.Addr {
	content, err := os.ReadFile(table)
	if err != nil {
		return netip.Addr{}
	}
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) < 8 || fields[1] != "00000000" || fields[7] != "00000000" {
			continue
		}
		if number, err := strconv.ParseUint(fields[2], 16, 32); err == nil && number != 0 {
			return netip.AddrFrom4([4]byte(binary.NativeEndian.AppendUint32(nil, uint32(number))))
		}
	}
	return netip.Addr{}
}

func endpoint(text string) (*policy.Endpoint, error) {
	if text == "" {
		return nil, nil
	}
	host, digits, err := net.SplitHostPort(text)
	if err != nil {
		return nil, fmt.Errorf("--gateway: %w", err)
	}
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("--gateway: %w", err)
	}
	return &policy.Endpoint{Name: policy.Normalize(host), Port: uint16(port)}, nil
}

// resolverConfig returns the configuration of the pod's resolver at the sidecar's first start, when no other container could have
// changed the file.
func resolverConfig(file, state string) (*dns.ClientConfig, error) {
	kept := filepath.Join(state, resolverFile)
	if config, err := dns.ClientConfigFromFile(kept); err == nil {
		return config, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, err
	}
	unfinished := kept + ".new"
	if err := os.WriteFile(unfinished, content, 0o600); err != nil {
		return nil, err
	}
	if err := os.Rename(unfinished, kept); err != nil {
		return nil, err
	}
	return dns.ClientConfigFromFile(kept)
}

// call connects stdin and stdout to the control socket. The operator runs it with exec.
func call(socket string) error {
	conn, err := control.Dial(socket, readyTimeout)
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(conn, os.Stdin)
		_ = conn.(*net.UnixConn).CloseWrite()
	}()
	_, err = io.Copy(os.Stdout, conn)
	return err
}
