package torture

import (
	"os"
	"strings"
	"testing"
)

// TestDefects: each defect of the list is a change of something that is there once.
func TestDefects(t *testing.T) {
	list, err := os.ReadFile("testdata/defects.txt")
	if err != nil {
		t.Fatal(err)
	}
	defects := strings.Split(string(list), "\ndefect ")[1:]
	for _, d := range defects {
		var old, instead []string
		name, file := "", ""
		for i, line := range strings.Split(d, "\n") {
			switch mark, rest, _ := strings.Cut(line, " "); {
			case i == 0:
				name = line
			case mark == "file":
				file = rest
			case mark == "<":
				old = append(old, rest)
			case mark == ">":
				instead = append(instead, rest)
			}
		}
		text, err := os.ReadFile("../../../" + file)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		was := strings.Join(old, "\n")
		if n := strings.Count(string(text), was); n != 1 || was == strings.Join(instead, "\n") {
			t.Errorf("%s: what it replaces is %d times in %s:\n%s", name, n, file, was)
		}
	}
	if len(defects) < 57 {
		t.Errorf("only %d defects", len(defects))
	}
}
