// Builds nftables expressions, which are the conditions and actions of rules.

package firewall

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// routeLocal is the kernel's routing type of addresses that belong to the network namespace (RTN_LOCAL).
const routeLocal = 2

// These are the registers of the parts of a set's key. An IPv4 address fills one 32-bit register, an IPv6 address four.
const (
	keyRegister  = 1
	after4Bytes  = unix.NFT_REG32_00 + 1
	after16Bytes = unix.NFT_REG32_00 + 4
)

type side int

const (
	source side = iota
	destination
)

type rule = []expr.Any

func chain(conn *nftables.Conn, table *nftables.Table, name string, kind nftables.ChainType, hook *nftables.ChainHook,
	priority *nftables.ChainPriority, otherwise nftables.ChainPolicy) *nftables.Chain {
	return conn.AddChain(&nftables.Chain{Table: table, Name: name, Type: kind, Hooknum: hook, Priority: priority, Policy: &otherwise})
}

func adder(conn *nftables.Conn, to *nftables.Chain) func(parts ...rule) {
	return func(parts ...rule) {
		conn.AddRule(&nftables.Rule{Table: to.Table, Chain: to, Exprs: slices.Concat(parts...)})
	}
}

func equals(what expr.Any, data []byte) rule {
	return rule{what, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data}}
}

func verdict(kind expr.VerdictKind) rule { return rule{&expr.Verdict{Kind: kind}} }

func counts() rule { return rule{&expr.Counter{}} }

func marked() rule {
	return equals(&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, binaryutil.NativeEndian.PutUint32(Mark))
}

func loopback() rule {
	return equals(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, append([]byte("lo"), make([]byte, unix.IFNAMSIZ-2)...))
}

func local() rule {
	return equals(&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true}, binaryutil.NativeEndian.PutUint32(routeLocal))
}

func protocol(number byte) rule {
	return equals(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, []byte{number})
}

func family(number byte) rule {
	return equals(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, []byte{number})
}

func port(of side, number uint16) rule {
	at := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: uint32(of) * 2, Len: 2}
	return equals(at, binaryutil.BigEndian.PutUint16(number))
}

// addressAt returns an address's family, and the expression that reads the address from the network header.
func addressAt(of side, is4 bool) (byte, *expr.Payload) {
	if is4 {
		return unix.NFPROTO_IPV4, &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12 + uint32(of)*4, Len: 4}
	}
	return unix.NFPROTO_IPV6, &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 8 + uint32(of)*16, Len: 16}
}

func address(of side, wanted netip.Addr) rule {
	number, at := addressAt(of, wanted.Is4())
	return slices.Concat(family(number), equals(at, wanted.AsSlice()))
}

// markFlow marks a connection of the sidecar, so that flowMarked matches the packets that arrive for it.
func markFlow() rule {
	return rule{
		&expr.Immediate{Register: 1, Data: binaryutil.NativeEndian.PutUint32(Mark)},
		&expr.Ct{Key: expr.CtKeyMARK, Register: 1, SourceRegister: true},
	}
}

func flowMarked() rule {
	return equals(&expr.Ct{Key: expr.CtKeyMARK, Register: 1}, binaryutil.NativeEndian.PutUint32(Mark))
}

func reply() rule { return equals(&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1}, []byte{1}) }

func established() rule {
	bits := binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)
	zero := binaryutil.NativeEndian.PutUint32(0)
	return rule{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: bits, Xor: zero},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: zero},
	}
}

func redirectTo(port uint16) rule {
	return rule{&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(port)}, &expr.Redir{RegisterProtoMin: 1}}
}

// neighbours adds rules for the neighbour discovery that IPv6 needs, which are router and neighbour solicitations and
// advertisements.
func neighbours(add func(parts ...rule)) {
	for _, kind := range []byte{133, 134, 135, 136} {
		at := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1}
		add(family(unix.NFPROTO_IPV6), protocol(unix.IPPROTO_ICMPV6), equals(at, []byte{kind}), verdict(expr.VerdictAccept))
	}
}

// count adds rules that count packets by address, protocol and port. The port is 0 for protocols without ports.
func count(add func(parts ...rule), sets map[byte]*nftables.Set) {
	for number, set := range sets {
		_, at := addressAt(destination, number == unix.NFPROTO_IPV4)
		next := uint32(after4Bytes)
		if number == unix.NFPROTO_IPV6 {
			next = after16Bytes
		}
		key := rule{at, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: next}}
		update := rule{&expr.Dynset{SrcRegKey: keyRegister, SetName: set.Name, SetID: set.ID, Operation: unix.NFT_DYNSET_OP_UPDATE}}
		toPort := rule{&expr.Payload{DestRegister: next + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}
		noPort := rule{&expr.Immediate{Register: next + 1, Data: []byte{0, 0}}}
		for _, with := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			add(family(number), protocol(with), key, toPort, update)
		}
		others := rule{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}}
		for _, with := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			others = append(others, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{with}})
		}
		add(family(number), others, key, noPort, update)
	}
}
