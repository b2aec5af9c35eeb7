package ipam

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestClaimName(t *testing.T) {
	name := ClaimName("east", "worker-1")
	if want := "block-768128503558a78d"; name != want {
		t.Errorf("got %q, want %q", name, want)
	}
	for what, other := range map[string]string{
		"another pool":                      ClaimName("west", "worker-1"),
		"another node":                      ClaimName("east", "worker-2"),
		"a pool that ends as a node begins": ClaimName("eastw", "orker-1"),
	} {
		if other == name {
			t.Errorf("%s has the same claim, %q", what, name)
		}
	}
}

func TestParseClaim(t *testing.T) {
	tests := map[string]struct {
		text string
		want Claim
	}{
		"what a claim writes":       {Claim{"east-1", "u1"}.String(), Claim{"east-1", "u1"}},
		"a block without UID":       {"east-1", Claim{"east-1", ""}},
		"nothing":                   {"", Claim{}},
		"more than a block and UID": {"east-1/u1/x", Claim{"east-1", "u1/x"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, ParseClaim(tt.text)); diff != "" {
				t.Errorf("claim (-want +got):\n%s", diff)
			}
		})
	}
}

// The rule second-unfilled-block, as far as blocks and claims tell.
func TestSecondUnfilledBlock(t *testing.T) {
	p := Pool{Name: "east", BlockSizeBits: 1, Subnets: []Subnet{subnet("10.0.0.0/24", "")}}
	room := Block{Name: "east-1", UID: "u1", Subnet: subnet("10.0.0.2/31", ""), Entries: []Entry{{Offset: 0}}}
	full := Block{Name: "east-1", UID: "u1", Subnet: subnet("10.0.0.2/31", ""), Entries: []Entry{{Offset: 0}, {Offset: 1}}}
	cooling := room
	cooling.Cooling = []Cooling{{1, at("12:00:30")}}
	cooled := room
	cooled.Cooling = []Cooling{{1, at("12:00:00")}}
	going := room
	going.Terminating = true
	taken := room
	taken.UID = "u9"

	tests := map[string]struct {
		wants Claim
		named *Block
		age   time.Duration
		want  ClaimAnswer
	}{
		"a retry of the same creation is admitted":                       {Claim{"east-1", "u1"}, nil, time.Second, ClaimOurs},
		"a retry is admitted even where its block is there":              {Claim{"east-1", "u1"}, &room, time.Hour, ClaimOurs},
		"another try at the same name is another block":                  {Claim{"east-1", "u2"}, &room, time.Second, ClaimBinds},
		"a block with room binds, however old the claim":                 {Claim{"east-2", "u2"}, &room, time.Hour, ClaimBinds},
		"a block of which an address has cooled binds":                   {Claim{"east-2", "u2"}, &cooled, time.Second, ClaimBinds},
		"a full block does not bind":                                     {Claim{"east-2", "u2"}, &full, time.Second, ClaimOver},
		"a block of which the last address is cooling down does not":     {Claim{"east-2", "u2"}, &cooling, time.Second, ClaimOver},
		"a block that is being deleted does not":                         {Claim{"east-2", "u2"}, &going, time.Second, ClaimOver},
		"a name that another node was faster to take does not":           {Claim{"east-2", "u2"}, &taken, time.Second, ClaimOver},
		"a block that cannot be found may be about to appear":            {Claim{"east-2", "u2"}, nil, 30*time.Second - 1, ClaimPending},
		"a block that cannot be found after half a minute never appears": {Claim{"east-2", "u2"}, nil, 30 * time.Second, ClaimOver},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := (Claim{"east-1", "u1"}).Answer(tt.wants, tt.named, p, tt.age, at("12:00:00")); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}
