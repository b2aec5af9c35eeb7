package webhooks

import (
	"bytes"
	"context"
	"strconv"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// unchanged spares its handler what an update leaves as it was: of allocations that old and new block have alike only the
// offsets are left in both, since that is all that judging the others takes. Of sixty allocations one is decoded then.
type unchanged struct{ admission.Handler }

// Handle implements admission.Handler.
func (h unchanged) Handle(ctx context.Context, req admission.Request) admission.Response {
	if req.Operation == admissionv1.Update {
		old, next := req.OldObject.Raw, req.Object.Raw
		before, after := entriesIn(old), entriesIn(next)
		stays := make(map[string]bool, len(before))
		for _, e := range before {
			stays[string(old[e.from:e.to])] = false
		}
		for _, e := range after {
			if _, there := stays[string(next[e.from:e.to])]; there {
				stays[string(next[e.from:e.to])] = true
			}
		}
		req.OldObject.Raw, req.Object.Raw = shortened(old, before, stays), shortened(next, after, stays)
	}
	return h.Handler.Handle(ctx, req)
}

// span is where an allocation stands in the JSON of a block, and its offset as it is written.
type span struct {
	from, to int
	offset   string
}

// entriesIn returns where the allocations of a block stand; none if that cannot be told.
func entriesIn(raw []byte) []span {
	c := cursor{json: raw}
	if !c.find("spec") || !c.find("allocations") || !c.take('[') {
		return nil
	}
	var entries []span
	for !c.take(']') {
		if len(entries) > 0 && !c.take(',') {
			return nil
		}
		c.space()
		entry := cursor{raw, c.at}
		if !c.skip() {
			return nil
		}
		e := span{from: entry.at, to: c.at}
		if entry.find("offset") {
			from := entry.at
			if entry.skip(); entry.at < e.to {
				e.offset = string(raw[from:entry.at])
			}
		}
		entries = append(entries, e)
	}
	return entries
}

// shortened returns the block with just the offset of each allocation that stays.
func shortened(raw []byte, entries []span, stays map[string]bool) []byte {
	out, rest := make([]byte, 0, len(raw)), 0
	for _, e := range entries {
		if _, err := strconv.Atoi(e.offset); err != nil || !stays[string(raw[e.from:e.to])] {
			continue
		}
		out = append(append(out, raw[rest:e.from]...), `{"offset":`...)
		out = append(append(out, e.offset...), '}')
		rest = e.to
	}
	return append(out, raw[rest:]...)
}

// cursor goes through JSON that is known to be valid: the review that it came in was decoded. On anything else its methods
// return false.
type cursor struct {
	json []byte
	at   int
}

func (c *cursor) space() {
	for c.at < len(c.json) && (c.json[c.at] == ' ' || c.json[c.at] == '\n' || c.json[c.at] == '\t' || c.json[c.at] == '\r') {
		c.at++
	}
}

// take goes behind a delimiter, if that is next.
func (c *cursor) take(delimiter byte) bool {
	c.space()
	if c.at >= len(c.json) || c.json[c.at] != delimiter {
		return false
	}
	c.at++
	return true
}

// text goes behind a string.
func (c *cursor) text() bool {
	if !c.take('"') {
		return false
	}
	for {
		i := bytes.IndexByte(c.json[c.at:], '"')
		if i < 0 {
			return false
		}
		end := c.at + i
		escapes := 0
		for end-escapes > c.at && c.json[end-escapes-1] == '\\' {
			escapes++
		}
		if c.at = end + 1; escapes%2 == 0 {
			return true
		}
	}
}

// skip goes behind a value.
func (c *cursor) skip() bool {
	c.space()
	for depth := 0; c.at < len(c.json); {
		switch c.json[c.at] {
		case '"':
			if !c.text() {
				return false
			}
		case '{', '[':
			depth++
			c.at++
			continue
		case '}', ']':
			depth--
			c.at++
		case ',', ':', ' ', '\n', '\t', '\r':
			c.at++
			continue
		default:
			for c.at < len(c.json) && strings.IndexByte(",]} \n\t\r", c.json[c.at]) < 0 {
				c.at++
			}
		}
		if depth <= 0 {
			return depth == 0
		}
	}
	return false
}

// find goes to the value of a key of the object that is next.
func (c *cursor) find(key string) bool {
	if !c.take('{') {
		return false
	}
	for {
		c.space()
		from := c.at + 1
		if !c.text() {
			return false
		}
		found := string(c.json[from:c.at-1]) == key
		if !c.take(':') {
			return false
		}
		if found {
			c.space()
			return true
		}
		if !c.skip() || !c.take(',') {
			return false
		}
	}
}
