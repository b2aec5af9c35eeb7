// Package ipam is the law: what pools, blocks and allocations are, which of them may be written, and which may be
// released. It is pure. Nothing in here reads a clock, a network or a file: callers pass in what was observed and
// when, and get a value back. Webhooks, finalizers, the audit and the command line all ask the same functions, so
// that they cannot disagree.
package ipam
