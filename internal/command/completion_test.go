package command

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCompletionInQuotes: bash completes a word with an open quote with the text that follows the quote, and other words as
// cobra's script does.
func TestCompletionInQuotes(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	// The program prints its arguments as a completion.
	program := "#!/bin/sh\nshift\nprintf '%s read\\n' \"$*\"\nprintf '%s\\n' :4\n"
	if err := os.WriteFile(filepath.Join(dir, "x"), []byte(program), 0o700); err != nil {
		t.Fatal(err)
	}
	var script, errs bytes.Buffer
	p := Program{Spec: Spec{Use: "x", Sub: []Spec{{Use: "attach", Run: func(context.Context, *Run) error { return nil }}}}}
	for _, shell := range []string{"zsh", "fish", "powershell", "bash"} {
		script.Reset()
		if status := p.Run(t.Context(), Env{Args: []string{"completion", shell}, Stdin: strings.NewReader(""), Stdout: &script, Stderr: &errs, Getenv: os.Getenv}); status != ExitOK || script.Len() == 0 {
			t.Fatalf("%s: status %d: %s", shell, status, &errs)
		}
	}
	for _, row := range []struct{ words, want string }{
		{`x attach "'p vfs_"`, "<attach p vfs_ read>"},
		{`x attach '"p vfs_'`, "<attach p vfs_ read>"},
		{`x attach "'"`, "<attach  read>"},
	} {
		cmd := exec.Command(bash, "--norc", "-c", `_get_comp_words_by_ref() { words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD; cur=${words[cword]}; }
eval "$SCRIPT"
COMP_WORDS=(`+row.words+`) COMP_CWORD=2
__start_x
printf '<%s>' "${COMPREPLY[@]}"`)
		cmd.Env = append(os.Environ(), "SCRIPT="+script.String(), "PATH="+dir+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != row.want {
			t.Errorf("%s: %v: %s, want %s", row.words, err, out, row.want)
		}
	}
}
