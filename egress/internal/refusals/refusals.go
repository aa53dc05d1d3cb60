package refusals

import (
	"cmp"
	"slices"
	"strings"
	"sync"
)

// MaxTargets is the maximum number of targets to count separately. Attempts to reach further targets are counted together.
const MaxTargets = 200

const maxHostCharacters = 253

// Target is the target of a refused attempt. Protocol is dns, tcp, tls, http, udp, icmp or the number of another protocol.
type Target struct {
	Protocol string `json:"protocol"`
	Host     string `json:"host"`
	Port     uint16 `json:"port,omitempty"`
}

// Count is a target with the number of refused attempts to reach it.
type Count struct {
	Target
	Count uint64 `json:"count"`
}

// Report lists refused attempts. Others is the number of attempts that Refused lacks, because there were too many targets or the
// target is unknown.
type Report struct {
	Refused []Count `json:"refused"`
	Others  uint64  `json:"others,omitempty"`
}

// Counter counts refusals. The zero value is ready for use.
type Counter struct {
	mutex  sync.Mutex
	counts map[Target]uint64
	others uint64
}

// Add counts refused attempts. The host comes from the pod, so it is reduced to the characters of names and addresses.
func (c *Counter) Add(target Target, times uint64) {
	target.Host = clean(target.Host)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.counts == nil {
		c.counts = map[Target]uint64{}
	}
	if _, known := c.counts[target]; !known && len(c.counts) >= MaxTargets {
		c.others += times
		return
	}
	c.counts[target] += times
}

// AddOthers counts refused attempts whose target is unknown.
func (c *Counter) AddOthers(times uint64) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.others += times
}

// Take returns the counts, the highest first, and resets them to zero.
func (c *Counter) Take() Report {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	report := Report{Refused: []Count{}, Others: c.others}
	for target, count := range c.counts {
		report.Refused = append(report.Refused, Count{target, count})
	}
	slices.SortFunc(report.Refused, func(one, other Count) int {
		return cmp.Or(cmp.Compare(other.Count, one.Count), cmp.Compare(one.Protocol, other.Protocol),
			cmp.Compare(one.Host, other.Host), cmp.Compare(one.Port, other.Port))
	})
	c.counts, c.others = nil, 0
	return report
}

func clean(host string) string {
	if len(host) > maxHostCharacters {
		host = host[:maxHostCharacters]
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', strings.ContainsRune(".-_:", r):
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '?'
	}, host)
}
