package kuberuntime

import (
	"context"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/kubelet/allocation/state"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	proberesults "k8s.io/kubernetes/pkg/kubelet/prober/results"
)

// The container of a token, and whether its image has changed since it was started.
func spec(token string) (v1.Container, bool) {
	c := v1.Container{Image: "registry/image:1"}
	changed := false
	if strings.HasPrefix(token, "+") {
		always := v1.ContainerRestartPolicyAlways
		c.RestartPolicy = &always
		token = token[1:]
	}
	parts := strings.Split(token, ":")
	name := parts[0]
	if i := strings.Index(name, "/"); i >= 0 {
		p := v1.ContainerRestartPolicy(name[i+1:])
		c.RestartPolicy = &p
		name = name[:i]
	}
	c.Name = name
	for _, f := range parts[1:] {
		switch {
		case f == "S":
			c.StartupProbe = &v1.Probe{}
		case f == "L":
			c.LivenessProbe = &v1.Probe{}
		case f == "C":
			changed = true
		case f == "R42" || f == "A42":
			action := v1.ContainerRestartRuleActionRestart
			if f == "A42" {
				action = v1.ContainerRestartRuleActionRestartAllContainers
			}
			codes := &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}}
			c.RestartPolicyRules = []v1.ContainerRestartRule{{Action: action, ExitCodes: codes}}
		default:
			panic(f)
		}
	}
	return c, changed
}

// Answer is what the kubelet does in a situation, and whether we should do the same.
func Answer(question string) (string, bool) {
	f := strings.Split(question, "|")
	for i := range f {
		f[i] = strings.TrimSpace(f[i])
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID("u-1"), Name: "web", Namespace: "shop"}}
	pod.Spec.RestartPolicy = v1.RestartPolicy(f[0])
	hashes := map[string]uint64{}
	add := func(t string) v1.Container {
		c, changed := spec(t)
		hashes[c.Name] = kubecontainer.HashContainer(&c)
		if changed {
			c.Image = "registry/image:2"
		}
		return c
	}
	for _, t := range strings.Fields(f[1]) {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, add(t))
	}
	for _, t := range strings.Fields(f[2]) {
		pod.Spec.Containers = append(pod.Spec.Containers, add(t))
	}
	for _, t := range strings.Fields(f[3]) {
		pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: t}})
	}
	status := &kubecontainer.PodStatus{ID: pod.UID, Name: pod.Name, Namespace: pod.Namespace}
	sb := func(id string, attempt uint32, ready bool, ip string) *runtimeapi.PodSandboxStatus {
		s := runtimeapi.PodSandboxState_SANDBOX_READY
		if !ready {
			s = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		}
		return &runtimeapi.PodSandboxStatus{Id: id, State: s, Metadata: &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: "u-1", Attempt: attempt}, Network: &runtimeapi.PodSandboxNetworkStatus{Ip: ip}}
	}
	switch f[6] {
	case "ready":
		status.SandboxStatuses = append(status.SandboxStatuses, sb("s0", 0, true, "10.0.0.7"))
	case "dead":
		status.SandboxStatuses = append(status.SandboxStatuses, sb("s0", 0, false, "10.0.0.7"))
	case "noip":
		status.SandboxStatuses = append(status.SandboxStatuses, sb("s0", 0, true, ""))
	case "host":
		pod.Spec.HostNetwork = true
		status.SandboxStatuses = append(status.SandboxStatuses, sb("s0", 0, true, "10.0.0.7"))
	case "two":
		status.SandboxStatuses = append(status.SandboxStatuses, sb("s1", 4, true, "10.0.0.7"), sb("s0", 0, true, "10.0.0.7"))
	case "none":
	default:
		panic(f[6])
	}
	m := &kubeGenericRuntimeManager{livenessManager: proberesults.NewManager(), startupManager: proberesults.NewManager(), internalLifecycle: cm.NewFakeInternalContainerLifecycle(), actuatedState: state.NewStateMemory(state.PodResourceInfoMap{})}
	counts := map[string]int{}
	for i, r := range strings.Fields(f[4]) {
		eq := strings.Index(r, "=")
		name, st := r[:eq], r[eq+1:]
		cs := &kubecontainer.Status{ID: kubecontainer.ContainerID{Type: "x", ID: fmt.Sprintf("%s-%d", name, counts[name])}, Name: name, Hash: hashes[name], RestartCount: counts[name], CreatedAt: time.Unix(int64(1000+i), 0)}
		counts[name]++
		p := strings.Split(st, ":")
		switch p[0] {
		case "running":
			cs.State = kubecontainer.ContainerStateRunning
		case "created":
			cs.State = kubecontainer.ContainerStateCreated
		case "unknown":
			cs.State = kubecontainer.ContainerStateUnknown
		case "exited":
			cs.State = kubecontainer.ContainerStateExited
			code := p[1]
			if strings.HasSuffix(code, "oom") {
				cs.Reason = "OOMKilled"
				code = strings.TrimSuffix(code, "oom")
			}
			cs.ExitCode, _ = strconv.Atoi(code)
		default:
			panic(r)
		}
		status.ContainerStatuses = append([]*kubecontainer.Status{cs}, status.ContainerStatuses...)
	}
	for _, t := range strings.Fields(f[5]) {
		eq := strings.Index(t, "=")
		name, kind, res := t[:eq-2], t[eq-1:eq], t[eq+1:]
		cs := status.FindContainerStatusByName(name)
		r := map[string]proberesults.Result{"failure": proberesults.Failure, "success": proberesults.Success, "unknown": proberesults.Unknown}[res]
		if kind == "S" {
			m.startupManager.Set(cs.ID, r, pod)
		} else {
			m.livenessManager.Set(cs.ID, r, pod)
		}
	}
	a := m.computePodActions(context.Background(), pod, status, kubecontainer.ShouldAllContainersRestart(pod, status, nil))
	var words []string
	if a.KillPod && !a.CreateSandbox {
		words = append(words, "over")
	} else {
		if a.CreateSandbox {
			w := fmt.Sprintf("create:%d", a.Attempt)
			if a.SandboxID != "" {
				w += "-for-" + a.SandboxID
			}
			words = append(words, w)
		} else {
			words = append(words, "keep:"+a.SandboxID)
			var kills []string
			for id, info := range a.ContainersToKill {
				kills = append(kills, fmt.Sprintf("stop:%s(%s; %s)", id.ID, info.message, info.reason))
			}
			sort.Strings(kills)
			words = append(words, kills...)
		}
		for _, info := range a.ContainersToReset {
			words = append(words, "reset:"+info.containerID.ID)
		}
		for _, i := range a.EphemeralContainersToStart {
			words = append(words, "start:"+pod.Spec.EphemeralContainers[i].Name)
		}
		for _, i := range a.InitContainersToStart {
			words = append(words, "start:"+pod.Spec.InitContainers[i].Name)
		}
		for _, i := range a.ContainersToStart {
			words = append(words, "start:"+pod.Spec.Containers[i].Name)
		}
	}
	return strings.Join(words, " "), a.KillPod || a.CreateSandbox || !ended(pod, status)
}

// Whether all regular containers have ended for good. Nearly always the pod's phase says so, and the kubelet does not even ask what to do;
// where it does ask, it may start a sidecar once more that it then stops.
func ended(pod *v1.Pod, status *kubecontainer.PodStatus) bool {
	for _, c := range pod.Spec.Containers {
		cs := status.FindContainerStatusByName(c.Name)
		if cs == nil || cs.State != kubecontainer.ContainerStateExited || podutil.ContainerShouldRestart(c, pod.Spec, int32(cs.ExitCode)) {
			return false
		}
	}
	return true
}
