package main

import (
	"math/rand/v2"
	"strings"
)

// One of these.
func one(chance *rand.Rand, of ...string) string { return of[chance.IntN(len(of))] }

func flags(chance *rand.Rand, probes bool) string {
	all := ""
	if probes && chance.Float64() < .35 {
		all += ":S"
	}
	if probes && chance.Float64() < .35 {
		all += ":L"
	}
	if chance.Float64() < .1 {
		all += ":C"
	}
	return all
}

// A pod, what the runtime has of it, and verdicts of probes, in the notation of the file's reader. Of each container only the newest
// instance may run, and all are in the newest sandbox: in other situations the pod engine is more careful than a kubelet.
func randomCase(chance *rand.Rand) string {
	var inits, regular, ephemeral, records, verdicts []string
	for _, name := range []string{"i", "j", "k"}[:[]int{0, 0, 1, 2, 3}[chance.IntN(5)]] {
		if chance.Float64() < .5 {
			inits = append(inits, "+"+name+flags(chance, true))
			continue
		}
		own := one(chance, "", "", "", "", "", "/OnFailure", "/Never")
		token := name + own + flags(chance, false)
		if own != "" && chance.Float64() < .3 {
			token += one(chance, ":R42", ":A42")
		}
		inits = append(inits, token)
	}
	for _, name := range []string{"a", "b", "c"}[:[]int{1, 1, 2, 3}[chance.IntN(4)]] {
		own := one(chance, "", "", "", "", "", "", "/OnFailure", "/Never", "/Always")
		token := name + own + flags(chance, true)
		if own != "" && chance.Float64() < .3 {
			token += one(chance, ":R42", ":A42")
		}
		regular = append(regular, token)
	}
	if chance.Float64() < .15 {
		ephemeral = append(ephemeral, "e")
	}
	all := append(append(append([]string{}, inits...), regular...), ephemeral...)
	reached := len(all)
	if chance.Float64() < .5 {
		reached = chance.IntN(len(all) + 1)
	}
	for index, token := range all[:reached] {
		if chance.Float64() < .12 {
			continue
		}
		state := one(chance, "running", "running", "running", "running", "exited:0", "exited:0", "exited:0", "exited:1", "exited:1",
			"exited:42", "created", "unknown", "exited:0oom")
		sidecar := strings.HasPrefix(token, "+")
		if index < len(inits) && index < reached-1 && chance.Float64() < .7 {
			state = "exited:0"
			if sidecar {
				state = "running"
			}
		}
		name := strings.TrimPrefix(token, "+")[:1]
		if chance.Float64() < .2 {
			records = append(records, name+"="+one(chance, "exited:0", "exited:1", "exited:42"))
		}
		records = append(records, name+"="+state)
		for _, kind := range []string{"S", "L"} {
			if strings.Contains(token, ":"+kind) && chance.Float64() < .75 {
				verdicts = append(verdicts, name+"."+kind+"="+one(chance, "success", "success", "failure", "unknown"))
			}
		}
	}
	sandbox := one(chance, "ready", "ready", "ready", "ready", "ready", "ready", "ready", "dead", "dead", "noip", "host", "two", "none")
	fields := []string{one(chance, "Always", "OnFailure", "Never")}
	for _, list := range [][]string{inits, regular, ephemeral, records, verdicts} {
		fields = append(fields, strings.Join(list, " "))
	}
	return strings.Join(append(fields, sandbox), " | ")
}
