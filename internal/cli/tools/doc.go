// Package tools has the scripts that ship with guestprobe, each with its arguments and its help.
package tools
