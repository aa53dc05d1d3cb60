package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/miekg/dns"
)

// playOutside plays the hosts outside the pod: it starts their servers in this network namespace, which has their addresses. On the
// node of a real cluster, the servers are the targets of attacks from a trial's agent (tests/support/egress_paths.py). When all
// servers listen, playOutside serves this program to the agent on ownPort.
func playOutside() error {
	if err := serveOutside(); err != nil {
		return err
	}
	if err := each(good, ownPort, func(conn net.Conn) {
		if program, err := os.Open("/proc/self/exe"); err == nil {
			_, _ = io.Copy(conn, program)
			_ = program.Close()
		}
	}); err != nil {
		return err
	}
	select {}
}

// serveOutside starts the servers outside the pod: HTTP on ports 80, 443, 8080 and 8081, a server that speaks first on 7000, an
// echo on 7001, UDP echoes on 5353 and 443, and DNS on 53.
func serveOutside() error {
	for _, address := range []string{good, evil, evilSix} {
		for _, port := range []string{"80", "8080", "8081", "443"} {
			listener, err := net.Listen("tcp", net.JoinHostPort(address, port))
			if err != nil {
				return err
			}
			go func() {
				_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = fmt.Fprintf(w, "%s host=%s", address, r.Host)
				}))
			}()
		}
		if err := each(address, "7000", func(conn net.Conn) {
			_, _ = io.WriteString(conn, "hello\n")
			_, _ = io.Copy(conn, conn)
		}); err != nil {
			return err
		}
		if err := each(address, "7001", func(conn net.Conn) { _, _ = io.Copy(conn, conn) }); err != nil {
			return err
		}
	}
	for _, address := range []string{good + ":5353", evil + ":5353", node + ":5353", evil + ":443", "[" + evilSix + "]:5353"} {
		if err := echoUDP(address); err != nil {
			return err
		}
	}
	return errors.Join(serveNames(node), serveNames(evil))
}

func serveNames(address string) error {
	packets, err := net.ListenPacket("udp", address+":53")
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address+":53")
	if err != nil {
		return err
	}
	go func() { _ = (&dns.Server{PacketConn: packets, Handler: dns.HandlerFunc(resolve)}).ActivateAndServe() }()
	go func() { // a delayed query is still answered
		_ = (&dns.Server{Listener: listener, Handler: dns.HandlerFunc(resolve), ReadTimeout: generous}).ActivateAndServe()
	}()
	return nil
}

func each(address, port string, handle func(net.Conn)) error {
	listener, err := net.Listen("tcp", net.JoinHostPort(address, port))
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				handle(conn)
			}()
		}
	}()
	return nil
}

func echoUDP(address string) error {
	packets, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	go func() {
		buffer := make([]byte, 1500)
		for {
			size, from, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = packets.WriteTo(buffer[:size], from)
		}
	}()
	return nil
}

// resolve answers queries from a fixed table, in place of the cluster's resolver.
func resolve(writer dns.ResponseWriter, request *dns.Msg) {
	answer := new(dns.Msg).SetReply(request)
	addresses := map[string]string{
		goodName: good, "www." + goodName: good, evilName: evil, "secret." + evilName: evil, "metadata." + goodName: "169.254.169.254",
		gatewayName + ".cluster.local": good, "short.default.svc.cluster.local": good,
	}
	question := request.Question[0]
	address, ok := addresses[strings.TrimSuffix(question.Name, ".")]
	switch {
	case !ok:
		answer.Rcode = dns.RcodeNameError
	case question.Qtype == dns.TypeA:
		header := dns.RR_Header{Name: question.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 30}
		answer.Answer = []dns.RR{&dns.A{Hdr: header, A: net.ParseIP(address)}}
	case question.Qtype == dns.TypeTXT:
		header := dns.RR_Header{Name: question.Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 30}
		answer.Answer = []dns.RR{&dns.TXT{Hdr: header, Txt: []string{"leaked"}}}
	}
	_ = writer.WriteMsg(answer)
}
