package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
)

// act is a piece of the demonstration: a title and what is done under it, call by call.
type act struct {
	title string
	calls []call
}

// call is a kubectl command, what goes to its standard input, and what must come back.
type call struct {
	// why tells the audience what to look at; empty where the command says it.
	why  string
	args string
	in   string
	// want is a regular expression that all of the answer must match. Variables ${NAME} in args, in and want are
	// replaced by what earlier calls kept.
	want string
	// keep names the variable that takes the answer.
	keep string
	// refused: the command must fail.
	refused bool
}

// demo plays the acts and stops at the first answer that is not what it should be.
func demo(ctx context.Context, s stage) error {
	kept := map[string]string{}
	for i, a := range acts() {
		fmt.Fprintf(s.out, "\n\x1b[1mAct %d. %s\x1b[0m\n", i+1, a.title)
		for _, c := range a.calls {
			if err := s.call(ctx, c, kept); err != nil {
				return fmt.Errorf("act %d (%s): %w", i+1, a.title, err)
			}
		}
	}
	fmt.Fprintln(s.out, "\nEvery answer was what it should be.")
	return nil
}

func (s stage) call(ctx context.Context, c call, kept map[string]string) error {
	fill := func(text string, quote func(string) string) string {
		for name, value := range kept {
			text = strings.ReplaceAll(text, "${"+name+"}", quote(value))
		}
		return text
	}
	same := func(v string) string { return v }
	args, in, want := fill(c.args, same), fill(c.in, same), fill(c.want, regexp.QuoteMeta)
	if c.why != "" {
		fmt.Fprintf(s.out, "\n# %s\n", c.why)
	}
	fmt.Fprintf(s.out, "$ kubectl %s\n", args)
	for line := range strings.SplitSeq(strings.TrimSpace(in), "\n") {
		if line != "" {
			fmt.Fprintf(s.out, "  | %s\n", line)
		}
	}
	cmd := exec.CommandContext(ctx, "kubectl", append([]string{"--kubeconfig", s.plane.Kubeconfig}, words(args)...)...)
	cmd.Stdin = strings.NewReader(in)
	output, err := cmd.CombinedOutput()
	answer := strings.TrimSpace(string(bytes.TrimSpace(output)))
	fmt.Fprintf(s.out, "%s\n", answer)
	switch {
	case c.refused && err == nil:
		return fmt.Errorf("kubectl %s: was admitted and should have been refused", args)
	case !c.refused && err != nil:
		return fmt.Errorf("kubectl %s: %w", args, err)
	}
	if !regexp.MustCompile("^(?s:" + want + ")$").MatchString(answer) {
		return fmt.Errorf("kubectl %s: the answer should have been\n%s", args, want)
	}
	if c.keep != "" {
		kept[c.keep] = answer
	}
	return nil
}

// words splits a command line at spaces outside single quotes.
func words(line string) []string {
	var out []string
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			out[len(out)-1] += part
			continue
		}
		fields := strings.Fields(part)
		if len(out) > 0 && len(fields) > 0 && !strings.HasPrefix(part, " ") {
			out[len(out)-1] += fields[0]
			fields = fields[1:]
		}
		out = append(out, fields...)
		if strings.HasSuffix(part, " ") && i < strings.Count(line, "'") {
			out = append(out, "")
		}
	}
	return out
}
