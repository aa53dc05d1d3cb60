// Decides which packets pass, are redirected, or are refused and counted.

package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"multistep.dev/egress/internal/policy"
	"multistep.dev/egress/internal/refusals"
)

// Mark is the socket mark of the sidecar's own connections. Only a process with NET_ADMIN or NET_RAW can set one.
const Mark = 0x4d535450

const (
	tableName   = "multistep_egress"
	chainName   = "leaving"
	refusedName = "refused" // prefix of the names of the sets in which refused packets are counted
	countedSize = 256
	bufferBytes = 4 << 20
)

// families has the number of each address family, the suffix of its sets' names, and the type of its addresses.
var families = []struct {
	number byte
	suffix string
	kind   nftables.SetDatatype
}{
	{unix.NFPROTO_IPV4, "4", nftables.TypeIPAddr},
	{unix.NFPROTO_IPV6, "6", nftables.TypeIP6Addr},
}

// Firewall replaces the rules of the pod.
type Firewall struct {
	// Nodes are the addresses from which the kubelet's probes may come.
	Nodes []netip.Addr
	// Probes are the ports of the probes.
	Probes []uint16
	// Proxy is the local port to which TCP is redirected.
	Proxy uint16
	// Names is the local port to which DNS is redirected.
	Names uint16
}

// Apply puts rules in force. In one transaction, it replaces all former rules, including those of an earlier process.
func (f *Firewall) Apply(rules *policy.Rules) error {
	conn, err := nftables.New(nftables.WithSockOptions(buffers))
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	table := &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
	conn.AddTable(table) // so that the deletion finds a table
	conn.DelTable(table)
	conn.AddTable(table)
	counted, err := addCounted(conn, table)
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	allowed, err := addListed(conn, table, rules.Prefixes)
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	f.redirect(conn, table, rules)
	f.leave(conn, table, rules, allowed, counted)
	f.enter(conn, table, rules, allowed)
	chain(conn, table, "forwarded", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter, nftables.ChainPolicyDrop)
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("nftables: %w (the container needs NET_ADMIN, the node nf_tables with nat, fib, conntrack and its marks)", err)
	}
	return nil
}

// buffers enlarges the socket's buffers, so that a whole policy fits. NET_ADMIN allows more than the node's default.
func buffers(socket *netlink.Conn) error {
	return errors.Join(socket.SetWriteBuffer(bufferBytes), socket.SetReadBuffer(bufferBytes))
}

// Count adds to counter the packets that the rules refused since they were put in force. It does not count redirected TCP
// connections, which the proxy counts.
func (f *Firewall) Count(counter *refusals.Counter) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
	known, total := uint64(0), uint64(0)
	for _, each := range families {
		name := refusedName + each.suffix
		set, err := conn.GetSetByName(table, name)
		if err != nil {
			return fmt.Errorf("nftables: set %s: %w", name, err)
		}
		elements, err := conn.GetSetElements(set)
		if err != nil {
			return fmt.Errorf("nftables: set %s: %w", name, err)
		}
		for _, each := range elements {
			if target, ok := targetOf(each.Key); ok && each.Counter != nil {
				counter.Add(target, each.Counter.Packets)
				known += each.Counter.Packets
			}
		}
	}
	found, err := conn.GetRules(table, &nftables.Chain{Name: chainName, Table: table})
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	for _, rule := range found {
		for _, each := range rule.Exprs {
			if count, ok := each.(*expr.Counter); ok {
				total += count.Packets
			}
		}
	}
	if total > known {
		counter.AddOthers(total - known)
	}
	return nil
}

func (f *Firewall) redirect(conn *nftables.Conn, table *nftables.Table, rules *policy.Rules) {
	to := chain(conn, table, "redirected", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest, nftables.ChainPolicyAccept)
	if rules.Public {
		return // the empty chain stays, because connections through the proxy need its address translation
	}
	add := adder(conn, to)
	add(marked(), verdict(expr.VerdictReturn))
	add(local(), verdict(expr.VerdictReturn))
	add(protocol(unix.IPPROTO_UDP), port(destination, 53), redirectTo(f.Names))
	add(protocol(unix.IPPROTO_TCP), port(destination, 53), redirectTo(f.Names))
	add(protocol(unix.IPPROTO_TCP), redirectTo(f.Proxy))
}

func (f *Firewall) leave(conn *nftables.Conn, table *nftables.Table, rules *policy.Rules, allowed, counted map[byte]*nftables.Set) {
	from := chain(conn, table, chainName, nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter, nftables.ChainPolicyDrop)
	add := adder(conn, from)
	if rules.Public {
		add(verdict(expr.VerdictAccept))
		return
	}
	add(marked(), markFlow(), verdict(expr.VerdictAccept))
	add(local(), verdict(expr.VerdictAccept))
	f.eachProbe(func(node netip.Addr, probe uint16) {
		add(address(destination, node), protocol(unix.IPPROTO_TCP), port(source, probe), reply(), verdict(expr.VerdictAccept))
	})
	neighbours(add)
	for version, set := range allowed {
		add(listed(destination, version, set), verdict(expr.VerdictAccept))
	}
	count(add, counted)
	add(protocol(unix.IPPROTO_TCP), counts(), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
	add(counts(), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}})
}

// enter accepts incoming packets of loopback, neighbour discovery, the kubelet's probes and established connections. Without a
// public network, only connections of the sidecar and with listed addresses count, because a process may keep a socket from a phase
// with another network.
func (f *Firewall) enter(conn *nftables.Conn, table *nftables.Table, rules *policy.Rules, allowed map[byte]*nftables.Set) {
	to := chain(conn, table, "entering", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter, nftables.ChainPolicyDrop)
	add := adder(conn, to)
	add(loopback(), verdict(expr.VerdictAccept))
	if rules.Public {
		add(established(), verdict(expr.VerdictAccept))
	}
	add(established(), flowMarked(), verdict(expr.VerdictAccept))
	for version, set := range allowed {
		add(established(), listed(source, version, set), verdict(expr.VerdictAccept))
	}
	f.eachProbe(func(node netip.Addr, probe uint16) {
		add(address(source, node), protocol(unix.IPPROTO_TCP), port(destination, probe), verdict(expr.VerdictAccept))
	})
	neighbours(add)
}

func (f *Firewall) eachProbe(do func(node netip.Addr, probe uint16)) {
	for _, node := range f.Nodes {
		for _, probe := range f.Probes {
			do(node, probe)
		}
	}
}

// addCounted adds the sets in which the kernel counts refused packets by target. It returns the sets by address family.
func addCounted(conn *nftables.Conn, table *nftables.Table) (map[byte]*nftables.Set, error) {
	sets := map[byte]*nftables.Set{}
	for _, each := range families {
		sets[each.number] = &nftables.Set{
			Table: table, Name: refusedName + each.suffix, Dynamic: true, Concatenation: true, Counter: true, Size: countedSize,
			KeyType: nftables.MustConcatSetType(each.kind, nftables.TypeInetProto, nftables.TypeInetService),
		}
		if err := conn.AddSet(sets[each.number], nil); err != nil {
			return nil, err
		}
	}
	return sets, nil
}

// targetOf reads a key of a set, which consists of an address, a protocol and a port, each padded to four bytes.
func targetOf(key []byte) (refusals.Target, bool) {
	size := len(key) - 8
	address, ok := netip.AddrFromSlice(key[:max(size, 0)])
	if !ok {
		return refusals.Target{}, false
	}
	names := map[byte]string{unix.IPPROTO_UDP: "udp", unix.IPPROTO_TCP: "tcp", unix.IPPROTO_ICMP: "icmp", unix.IPPROTO_ICMPV6: "icmp"}
	name, known := names[key[size]]
	if !known {
		name = strconv.Itoa(int(key[size]))
	}
	return refusals.Target{Protocol: name, Host: address.String(), Port: binary.BigEndian.Uint16(key[size+4:])}, true
}
