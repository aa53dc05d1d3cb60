package refusals

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestTheMostFrequentTargetsComeFirst(t *testing.T) {
	var counter Counter
	counter.Add(Target{"tls", "evil.net", 443}, 1)
	counter.Add(Target{"dns", "evil.net", 53}, 2)
	counter.Add(Target{"tls", "evil.net", 443}, 4)
	want := Report{Refused: []Count{{Target{"tls", "evil.net", 443}, 5}, {Target{"dns", "evil.net", 53}, 2}}}
	if got := counter.Take(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if got := counter.Take(); len(got.Refused) != 0 || got.Others != 0 {
		t.Errorf("after Take: %+v", got)
	}
}

func TestFurtherTargetsAreCountedTogether(t *testing.T) {
	var counter Counter
	for number := range MaxTargets + 50 {
		counter.Add(Target{"dns", fmt.Sprintf("h%d", number), 53}, 1)
	}
	counter.Add(Target{"dns", "h0", 53}, 1)
	counter.AddOthers(3)
	got := counter.Take()
	if len(got.Refused) != MaxTargets || got.Others != 53 || got.Refused[0].Count != 2 {
		t.Errorf("%d targets, %d others", len(got.Refused), got.Others)
	}
}

func TestHostsAreReducedToHarmlessCharacters(t *testing.T) {
	var counter Counter
	counter.Add(Target{"http", "Evil\x1b[2J.net/\u00e4" + strings.Repeat("x", 300), 80}, 1)
	host := counter.Take().Refused[0].Host
	if !strings.HasPrefix(host, "evil??2j.net??xx") || len(host) > 253 {
		t.Errorf("got %q", host)
	}
}
