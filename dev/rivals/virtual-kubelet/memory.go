package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	dto "github.com/prometheus/client_model/go"
	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// memory holds pods in memory. Being a PodNotifier it is spared the original's polling loop.
type memory struct {
	mutex  sync.Mutex
	pods   map[string]*v1.Pod
	notify func(*v1.Pod)
}

var (
	_ nodeutil.Provider = (*memory)(nil)
	_ node.PodNotifier  = (*memory)(nil)
)

var errUnsupported = errors.New("not part of the bench")

func key(namespace, name string) string { return namespace + "/" + name }

func (m *memory) NotifyPods(_ context.Context, notify func(*v1.Pod)) { m.notify = notify }

// CreatePod runs the pod at once. The pod is ours: the core hands over a copy, and reads what it gets back.
func (m *memory) CreatePod(_ context.Context, pod *v1.Pod) error {
	pod = pod.DeepCopy()
	pod.Status = running(pod)
	m.put(pod)
	m.notify(pod)
	return nil
}

func (m *memory) UpdatePod(_ context.Context, pod *v1.Pod) error {
	known, err := m.get(pod.Namespace, pod.Name)
	if err != nil {
		return err
	}
	pod = pod.DeepCopy()
	pod.Status = known.Status
	m.put(pod)
	m.notify(pod)
	return nil
}

// DeletePod stops the pod at once.
func (m *memory) DeletePod(_ context.Context, pod *v1.Pod) error {
	known, err := m.get(pod.Namespace, pod.Name)
	if err != nil {
		return err
	}
	m.mutex.Lock()
	delete(m.pods, key(pod.Namespace, pod.Name))
	m.mutex.Unlock()
	ended := pod.DeepCopy()
	ended.Status = stopped(known)
	m.notify(ended)
	return nil
}

func (m *memory) GetPod(_ context.Context, namespace, name string) (*v1.Pod, error) {
	return m.get(namespace, name)
}

func (m *memory) GetPodStatus(_ context.Context, namespace, name string) (*v1.PodStatus, error) {
	pod, err := m.get(namespace, name)
	if err != nil {
		return nil, err
	}
	return pod.Status.DeepCopy(), nil
}

func (m *memory) GetPods(context.Context) ([]*v1.Pod, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	all := make([]*v1.Pod, 0, len(m.pods))
	for _, pod := range m.pods {
		all = append(all, pod)
	}
	return all, nil
}

func (m *memory) put(pod *v1.Pod) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.pods[key(pod.Namespace, pod.Name)] = pod
}

func (m *memory) get(namespace, name string) (*v1.Pod, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	pod, known := m.pods[key(namespace, name)]
	if !known {
		return nil, errdefs.NotFoundf("no pod %s/%s", namespace, name)
	}
	return pod, nil
}

// running is the status that the mock provider of this project reports too.
func running(pod *v1.Pod) v1.PodStatus {
	now := metav1.Now()
	status := v1.PodStatus{
		Phase:     v1.PodRunning,
		HostIP:    "127.0.0.1",
		HostIPs:   []v1.HostIP{{IP: "127.0.0.1"}},
		PodIP:     "10.88.0.2",
		PodIPs:    []v1.PodIP{{IP: "10.88.0.2"}},
		QOSClass:  pod.Status.QOSClass,
		StartTime: &now,
	}
	for _, kind := range []v1.PodConditionType{
		v1.PodReadyToStartContainers, v1.PodInitialized, v1.PodReady, v1.ContainersReady, v1.PodScheduled,
	} {
		condition := v1.PodCondition{Type: kind, Status: v1.ConditionTrue, LastTransitionTime: now}
		status.Conditions = append(status.Conditions, condition)
	}
	started := true
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, v1.ContainerStatus{
			Name:        container.Name,
			Image:       container.Image,
			ContainerID: fmt.Sprintf("mock://%s.%s.0", pod.UID, container.Name),
			Ready:       true,
			Started:     &started,
			State:       v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return status
}

func stopped(pod *v1.Pod) v1.PodStatus {
	now := metav1.Now()
	status := *pod.Status.DeepCopy()
	status.Phase = v1.PodSucceeded
	for index := range status.ContainerStatuses {
		container := &status.ContainerStatuses[index]
		ended := v1.ContainerStateTerminated{Reason: "Completed", FinishedAt: now, ContainerID: container.ContainerID}
		if container.State.Running != nil {
			ended.StartedAt = container.State.Running.StartedAt
		}
		started := false
		container.Ready, container.Started = false, &started
		container.State = v1.ContainerState{Terminated: &ended}
	}
	for index := range status.Conditions {
		kind := status.Conditions[index].Type
		if kind == v1.PodReady || kind == v1.ContainersReady {
			status.Conditions[index].Status = v1.ConditionFalse
			status.Conditions[index].LastTransitionTime = now
		}
	}
	return status
}

// The rest of the contract. Nobody asks: the bench starts no HTTP server.

func (*memory) GetContainerLogs(context.Context, string, string, string, api.ContainerLogOpts) (io.ReadCloser, error) {
	return nil, errUnsupported
}

func (*memory) RunInContainer(context.Context, string, string, string, []string, api.AttachIO) error {
	return errUnsupported
}

func (*memory) AttachToContainer(context.Context, string, string, string, api.AttachIO) error {
	return errUnsupported
}

func (*memory) GetStatsSummary(context.Context) (*stats.Summary, error) {
	return nil, errUnsupported
}

func (*memory) GetMetricsResource(context.Context) ([]*dto.MetricFamily, error) {
	return nil, errUnsupported
}

func (*memory) PortForward(context.Context, string, string, int32, io.ReadWriteCloser) error {
	return errUnsupported
}
