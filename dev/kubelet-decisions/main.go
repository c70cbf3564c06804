// Writes down what a kubelet decides about random pods, as many as asked for, of every kind of answer some.
package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"decisions/kuberuntime"
)

// How often the same kind of answer is worth a line.
const enough = 3

func main() {
	seed, err := strconv.ParseUint(os.Args[1], 10, 64)
	if err != nil {
		panic(err)
	}
	wanted, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	chance := rand.New(rand.NewPCG(seed, 0))
	names := regexp.MustCompile(`\b[ijkabc](-\d+)?\b`)
	kinds, lines := map[string]int{}, map[string]bool{}
	for tries := 0; len(lines) < wanted && tries < 1000*wanted; tries++ {
		question := randomCase(chance)
		answer, comparable := kuberuntime.Answer(question)
		if !comparable {
			continue
		}
		fields := strings.Split(question, " | ")
		kind := fields[0] + fields[6] + names.ReplaceAllString(answer, "x")
		if kinds[kind]++; kinds[kind] <= enough {
			lines[question+" | "+answer] = true
		}
	}
	sorted := make([]string, 0, len(lines))
	for line := range lines {
		sorted = append(sorted, strings.ReplaceAll(line, "|  |", "| |"))
	}
	sort.Strings(sorted)
	fmt.Println(strings.Join(sorted, "\n"))
}
