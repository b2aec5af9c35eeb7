package ipam

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"
)

// Claim says which block a node may get next from a pool. Block creations of one node and pool queue up at it, since
// admission runs before the write and every replica sees only the past.
type Claim struct {
	// Block and BlockUID are the object that was admitted last. Its name alone would not do: another node may have
	// been faster in taking the name.
	Block, BlockUID string
}

// ClaimAge is how long a claim binds although the block that it names cannot be found: the write that was admitted
// may still be under way.
const ClaimAge = 30 * time.Second

// ClaimName returns the name of the object that holds the claim of a node on a pool.
func ClaimName(pool, node string) string {
	sum := sha256.Sum256([]byte(pool + "\x00" + node))
	return "block-" + hex.EncodeToString(sum[:])[:16]
}

// String returns the claim as it is stored.
func (c Claim) String() string { return c.Block + "/" + c.BlockUID }

// ParseClaim reads what String wrote. What cannot be read names no block, and so binds until it is too old.
func ParseClaim(s string) Claim {
	block, uid, _ := strings.Cut(s, "/")
	return Claim{block, uid}
}

// ClaimAnswer is what an existing claim means for the creation of another block.
type ClaimAnswer string

const (
	// ClaimOurs: the claim is this very object's, from an earlier try.
	ClaimOurs ClaimAnswer = "Ours"
	// ClaimOver: the claim has served its purpose or lost a race. Take it over.
	ClaimOver ClaimAnswer = "Over"
	// ClaimPending: the block that it names may be about to appear. Ask again when ClaimAge is over.
	ClaimPending ClaimAnswer = "Pending"
	// ClaimBinds: the block that it names is there and has room.
	ClaimBinds ClaimAnswer = "Binds"
)

// Answer says what the claim means for a block that wants to be created. Named is the block that bears the claimed
// name now, nil if there is none; age is how old the claim is.
func (c Claim) Answer(wants Claim, named *Block, p Pool, age time.Duration, now time.Time) ClaimAnswer {
	switch {
	case c == wants:
		return ClaimOurs
	case named == nil && age < ClaimAge:
		return ClaimPending
	case named == nil, named.UID != c.BlockUID, !named.Unfilled(p, now):
		return ClaimOver
	}
	return ClaimBinds
}
