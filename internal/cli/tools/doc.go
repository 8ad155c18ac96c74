// Package tools contains the scripts that are part of guestprobe, with their arguments and help texts.
package tools
