package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// act is a piece of the demonstration: a title and what is done under it, call by call.
type act struct {
	title string
	calls []call
}

// call is a command and what must come back. Variables ${NAME} in it are replaced by what earlier calls kept.
type call struct {
	// why tells the audience what to look at; empty where the command says it.
	why string
	// oakum: the command is oakum's, not kubectl's.
	oakum bool
	args  []string
	// in goes to the command's standard input.
	in string
	// want is a regular expression that all of the answer must match.
	want string
	// keep names the variable that takes the answer.
	keep string
	// refused: the command must fail.
	refused bool
	// within gives the cluster so long to come to the answer. The command is repeated, and its last answer shown.
	within time.Duration
}

// demo plays the acts and stops at the first answer that is not what it should be.
func demo(ctx context.Context, s stage) error {
	kept := map[string]string{}
	for i, a := range acts() {
		fmt.Fprintf(s.out, "\n--- Act %d. %s ---\n", i+1, a.title)
		for _, c := range a.calls {
			if err := s.play(ctx, c, kept); err != nil {
				return fmt.Errorf("act %d (%s): %w", i+1, a.title, err)
			}
		}
	}
	fmt.Fprintln(s.out, "\nEvery answer was what it should be.")
	return nil
}

func (s stage) play(ctx context.Context, c call, kept map[string]string) error {
	fill := func(text string, quote func(string) string) string {
		for name, value := range kept {
			text = strings.ReplaceAll(text, "${"+name+"}", quote(value))
		}
		return text
	}
	same := func(v string) string { return v }
	args := make([]string, len(c.args))
	for i, a := range c.args {
		args[i] = fill(a, same)
	}
	in, want := fill(c.in, same), regexp.MustCompile("^(?s:"+fill(c.want, regexp.QuoteMeta)+")$")
	if c.why != "" {
		fmt.Fprintf(s.out, "\n# %s\n", c.why)
	}
	program, path := "kubectl", "kubectl"
	if c.oakum {
		program, path = "oakum", s.binary
	}
	command := program + " " + quoted(args)
	fmt.Fprintf(s.out, "$ %s\n", command)
	if in = strings.TrimSpace(in); in != "" {
		fmt.Fprintf(s.out, "  | %s\n", strings.ReplaceAll(in, "\n", "\n  | "))
	}
	var answer string
	var failure error
	began := time.Now()
	// A wait that ends without the right answer is reported by the check below.
	_ = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, max(c.within, time.Nanosecond), true, func(context.Context) (bool, error) {
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+s.plane.Kubeconfig)
		cmd.Stdin = strings.NewReader(in)
		output, err := cmd.CombinedOutput()
		answer, failure = strings.TrimSpace(string(output)), err
		return want.MatchString(answer), nil
	})
	fmt.Fprintln(s.out, answer)
	if took := time.Since(began); c.within > 0 {
		fmt.Fprintf(s.out, "  (after %.1f s)\n", took.Seconds())
	}
	switch {
	case c.refused && failure == nil:
		return fmt.Errorf("%s: succeeded and should have failed", command)
	case !c.refused && failure != nil:
		return fmt.Errorf("%s: %w", command, failure)
	case !want.MatchString(answer):
		return fmt.Errorf("%s: the answer should have been\n%s", command, c.want)
	}
	if c.keep != "" {
		kept[c.keep] = answer
	}
	return nil
}

// quoted writes a command line as a person would type it.
func quoted(args []string) string {
	texts := make([]string, len(args))
	for i, a := range args {
		texts[i] = a
		if strings.ContainsAny(a, " {}[]\"$*?<>|&;") {
			texts[i] = "'" + a + "'"
		}
	}
	return strings.Join(texts, " ")
}
