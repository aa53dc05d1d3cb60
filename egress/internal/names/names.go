package names

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"multistep.dev/egress/internal/outward"
	"multistep.dev/egress/internal/policy"
	"multistep.dev/egress/internal/refusals"
)

const (
	mostQueries   = 64
	mostAddresses = 4096
	leastLearned  = 5 * time.Minute
	mostLearned   = time.Hour
)

// AnswerTimeout limits the time for the answer to one query. ServerTimeout limits the time for the answer of one resolver. Only
// tests change these values.
var (
	AnswerTimeout = 4 * time.Second
	ServerTimeout = 2 * time.Second
)

// Names resolves allowed names. Config is the configuration of the pod's resolver. Rules returns the rules in force.
type Names struct {
	Config  *dns.ClientConfig
	Rules   func() *policy.Rules
	Refused *refusals.Counter

	mutex   sync.Mutex
	learned map[netip.Addr]map[string]time.Time
	queries chan struct{}
}

// New returns a resolver of the names that the rules allow.
func New(config *dns.ClientConfig, rules func() *policy.Rules, refused *refusals.Counter) *Names {
	return &Names{
		Config: config, Rules: rules, Refused: refused,
		learned: map[netip.Addr]map[string]time.Time{}, queries: make(chan struct{}, mostQueries),
	}
}

// ServeDNS answers queries for A and AAAA records of allowed names. It does not forward queries of other types, because they could
// carry data out of the pod. Their answers could also contain keys of Encrypted Client Hello, which hides the server's name from
// the proxy.
func (n *Names) ServeDNS(writer dns.ResponseWriter, request *dns.Msg) {
	answer := new(dns.Msg).SetReply(request)
	answer.RecursionAvailable = true
	defer func() { _ = writer.WriteMsg(answer) }()
	if len(request.Question) != 1 || request.Question[0].Qclass != dns.ClassINET {
		answer.Rcode = dns.RcodeRefused
		return
	}
	question := request.Question[0]
	name := policy.Normalize(question.Name)
	asked, allowed := n.allowed(name)
	if !allowed {
		n.Refused.Add(refusals.Target{Protocol: "dns", Host: n.bare(name)[0], Port: 53}, 1)
		answer.Rcode = dns.RcodeNameError
		return
	}
	if question.Qtype != dns.TypeA && question.Qtype != dns.TypeAAAA {
		return
	}
	select {
	case n.queries <- struct{}{}:
		defer func() { <-n.queries }()
	default:
		answer.Rcode = dns.RcodeServerFailure
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), AnswerTimeout)
	defer cancel()
	found, err := n.query(ctx, name, question.Qtype)
	if err != nil {
		answer.Rcode = dns.RcodeServerFailure
		return
	}
	answer.Rcode = found.Rcode
	answer.Answer = n.take(asked, found, question.Name)
}

// bare returns the names that a query may mean, the shortest first. These are the name itself, and the name without each of the
// search domains that resolvers append. A pod that looks up a.b also sends a query for a.b.default.svc.cluster.local.
func (n *Names) bare(name string) []string {
	found := []string{name}
	for _, domain := range n.Config.Search {
		if short, ok := strings.CutSuffix(name, "."+policy.Normalize(domain)); ok && short != "" {
			found = append(found, short)
		}
	}
	slices.SortFunc(found, func(one, other string) int { return len(one) - len(other) })
	return found
}

// allowed returns the allowed name that a query means.
func (n *Names) allowed(name string) (string, bool) {
	rules := n.Rules()
	for _, each := range n.bare(name) {
		if rules.Resolves(each) {
			return each, true
		}
	}
	return "", false
}

// Allowed returns the allowed name that a client's name means, if connections to this port of the name are allowed.
func (n *Names) Allowed(name string, port uint16) (string, bool) {
	rules := n.Rules()
	for _, each := range n.bare(name) {
		if rules.AllowsEndpoint(each, port) {
			return each, true
		}
	}
	return "", false
}

// AllowedAt returns a name that resolved to this address and that is allowed for connections to this port, or "".
func (n *Names) AllowedAt(to netip.AddrPort) string {
	rules := n.Rules()
	for _, name := range n.of(to.Addr()) {
		if rules.AllowsEndpoint(name, to.Port()) {
			return name
		}
	}
	return ""
}

// query sends a new message to the pod's resolver, so that only the name and the type of the client's query leave the pod.
func (n *Names) query(ctx context.Context, name string, kind uint16) (*dns.Msg, error) {
	message := new(dns.Msg).SetQuestion(dns.Fqdn(name), kind)
	errs := []error{errors.New("the pod has no resolver")}
	for _, server := range n.Config.Servers {
		for _, network := range []string{"udp", "tcp"} {
			answer, err := exchange(ctx, network, net.JoinHostPort(server, n.Config.Port), message)
			if err == nil && !answer.Truncated {
				return answer, nil
			}
			if errs = append(errs, err); err != nil {
				break
			}
		}
	}
	return nil, errors.Join(errs...)
}

func exchange(ctx context.Context, network, server string, message *dns.Msg) (*dns.Msg, error) {
	conn, err := outward.Dial(ctx, network, server)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	client := &dns.Client{Net: network, Timeout: ServerTimeout}
	answer, _, err := client.ExchangeWithConnContext(ctx, message, &dns.Conn{Conn: conn})
	return answer, err
}

// take remembers the addresses in an answer of the resolver, and returns them as records of owner, the name that the client
// queried.
func (n *Names) take(name string, answer *dns.Msg, owner string) []dns.RR {
	var records []dns.RR
	rules := n.Rules()
	for _, each := range answer.Answer {
		address, ok := addressOf(each)
		if !ok || (policy.LeadsInside(address) && !rules.AllowsAddress(address)) {
			continue
		}
		seconds := each.Header().Ttl
		n.learn(name, address, time.Duration(seconds)*time.Second)
		header := dns.RR_Header{Name: owner, Rrtype: each.Header().Rrtype, Class: dns.ClassINET, Ttl: seconds}
		if address.Is4() {
			records = append(records, &dns.A{Hdr: header, A: address.AsSlice()})
		} else {
			records = append(records, &dns.AAAA{Hdr: header, AAAA: address.AsSlice()})
		}
	}
	return records
}

func addressOf(record dns.RR) (netip.Addr, bool) {
	var bytes net.IP
	switch typed := record.(type) {
	case *dns.A:
		bytes = typed.A.To4()
	case *dns.AAAA:
		bytes = typed.AAAA
	}
	address, ok := netip.AddrFromSlice(bytes)
	return address, ok
}

func (n *Names) learn(name string, address netip.Addr, lifetime time.Duration) {
	until := time.Now().Add(min(max(lifetime, leastLearned), mostLearned))
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.learned[address] == nil {
		if len(n.learned) >= mostAddresses {
			n.forget(func(_ string, known time.Time) bool { return time.Now().After(known) })
		}
		if len(n.learned) >= mostAddresses {
			return
		}
		n.learned[address] = map[string]time.Time{}
	}
	if _, known := n.learned[address][name]; known || len(n.learned[address]) < 16 {
		n.learned[address][name] = until
	}
}

func (n *Names) forget(gone func(name string, until time.Time) bool) {
	for address, known := range n.learned {
		for name, until := range known {
			if gone(name, until) {
				delete(known, name)
			}
		}
		if len(known) == 0 {
			delete(n.learned, address)
		}
	}
}

// Restrict forgets the addresses of names that the rules do not allow.
func (n *Names) Restrict(rules *policy.Rules) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.forget(func(name string, _ time.Time) bool { return !rules.Resolves(name) })
}

func (n *Names) of(address netip.Addr) []string {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	var found []string
	for name, until := range n.learned[address] {
		if time.Now().Before(until) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found
}

// Lookup returns the address wanted if the allowed name resolves to it, otherwise another address of the name. So a client cannot
// choose an address that the name does not have.
func (n *Names) Lookup(ctx context.Context, name string, wanted netip.Addr) (netip.Addr, error) {
	if slices.Contains(n.of(wanted), name) {
		return wanted, nil
	}
	kinds := []uint16{dns.TypeA, dns.TypeAAAA}
	if !wanted.Is4() {
		slices.Reverse(kinds)
	}
	for _, full := range n.Config.NameList(name) {
		for _, kind := range kinds {
			answer, err := n.query(ctx, policy.Normalize(full), kind)
			if err != nil {
				return netip.Addr{}, err
			}
			if records := n.take(name, answer, full); len(records) > 0 {
				if slices.Contains(n.of(wanted), name) {
					return wanted, nil
				}
				address, _ := addressOf(records[0])
				return address, nil
			}
		}
	}
	return netip.Addr{}, fmt.Errorf("%s has no address", name)
}
