// Cpusets answers which CPUs kubelet would give to pods: its topology manager and CPU manager, of the release that
// go.mod names, on machines that are described and not there. No kubelet runs and nothing is bound.
//
// Standard input: a JSON list of nodes (Node below), each a machine, kubelet's settings and pods in their order.
// Standard output: a JSON list of answers per node, one per pod: its CPUs as the kernel lists them, or why it is
// refused. Pods keep what they got, as on a node where nothing ends.
//
// tests/cpumanager feeds it pod templates as the operator renders them; build.sh builds it (cpusets).
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	cadvisor "github.com/google/cadvisor/info/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"
)

// Machine counts what it has; threads are numbered as Linux does on x86, all first threads before all second ones.
type Machine struct {
	Sockets        int `json:"sockets"`
	CoresPerSocket int `json:"coresPerSocket"`
	ThreadsPerCore int `json:"threadsPerCore"`
	NodesPerSocket int `json:"numaNodesPerSocket"`
}

// Node is a machine with kubelet's settings, named as in KubeletConfiguration, and the pods that it is to run.
type Node struct {
	Machine                 Machine           `json:"machine"`
	CPUManagerPolicy        string            `json:"cpuManagerPolicy"`
	CPUManagerPolicyOptions map[string]string `json:"cpuManagerPolicyOptions"`
	TopologyManagerPolicy   string            `json:"topologyManagerPolicy"`
	ReservedSystemCPUs      string            `json:"reservedSystemCPUs"`
	Pods                    []v1.Pod          `json:"pods"`
}

// Answer is what a pod got; both fields are empty where it shares the CPUs that no pod owns.
type Answer struct {
	Pod     string `json:"pod"`
	CPUs    string `json:"cpus"`
	Refused string `json:"refused"`
}

func (m Machine) describe() *cadvisor.MachineInfo {
	cores := m.Sockets * m.CoresPerSocket
	info := &cadvisor.MachineInfo{NumCores: cores * m.ThreadsPerCore, NumPhysicalCores: cores, NumSockets: m.Sockets}
	perNode := m.CoresPerSocket / m.NodesPerSocket
	for id := range m.Sockets * m.NodesPerSocket {
		node := cadvisor.Node{Id: id}
		for core := id * perNode; core < (id+1)*perNode; core++ {
			threads := []int{}
			for thread := range m.ThreadsPerCore {
				threads = append(threads, thread*cores+core)
			}
			socket := core / m.CoresPerSocket
			node.Cores = append(node.Cores, cadvisor.Core{
				Id: core % m.CoresPerSocket, Threads: threads, SocketID: socket,
				// One last-level cache per socket, as on Xeons; in sub-NUMA clustering it is one per node.
				UncoreCaches: []cadvisor.Cache{{Id: id, Level: 3, Type: "Unified"}},
			})
		}
		info.Topology = append(info.Topology, node)
	}
	return info
}

// noStatus says of every pod that it has not started, so that nothing is to be bound.
type noStatus struct{}

func (noStatus) GetPodStatus(types.UID) (v1.PodStatus, bool) { return v1.PodStatus{}, false }

// admit asks the managers for every pod as kubelet does when a pod is bound to its node.
func admit(node Node) ([]Answer, error) {
	info := node.Machine.describe()
	topology, err := topologymanager.NewManager(
		info.Topology, node.TopologyManagerPolicy, topologymanager.ContainerTopologyScope, nil)
	if err != nil {
		return nil, err
	}
	reserved, err := cpuset.Parse(node.ReservedSystemCPUs)
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "cpusets-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	amount := v1.ResourceList{v1.ResourceCPU: *resource.NewQuantity(int64(reserved.Size()), resource.DecimalSI)}
	cpus, err := cpumanager.NewManager(klog.Background(), node.CPUManagerPolicy, node.CPUManagerPolicyOptions,
		time.Hour, info, reserved, amount, folder, topology)
	if err != nil {
		return nil, err
	}
	// All from the start, refused ones too: kubelet's loop, which takes CPUs away from pods that are not active, reads
	// this while pods are admitted.
	active := func() (all []*v1.Pod) {
		for number := range node.Pods {
			all = append(all, &node.Pods[number])
		}
		return all
	}
	for number := range node.Pods {
		node.Pods[number].UID = types.UID(fmt.Sprintf("%d", number))
	}
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	if err := cpus.Start(context.Background(), active, ready, noStatus{}, nil, containermap.NewContainerMap()); err != nil {
		return nil, err
	}
	topology.AddHintProvider(klog.Background(), cpus)
	answers := []Answer{}
	for number := range node.Pods {
		pod := &node.Pods[number]
		answer := Answer{Pod: pod.Name}
		if result := topology.Admit(&lifecycle.PodAdmitAttributes{Pod: pod}); !result.Admit {
			answer.Refused = fmt.Sprintf("%s: %s", result.Reason, result.Message)
		} else {
			answer.CPUs = cpus.GetExclusiveCPUs(string(pod.UID), pod.Spec.Containers[0].Name).String()
		}
		answers = append(answers, answer)
	}
	return answers, nil
}

func main() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	var nodes []Node
	if err := json.NewDecoder(os.Stdin).Decode(&nodes); err != nil {
		fmt.Fprintln(os.Stderr, "cpusets: standard input:", err)
		os.Exit(2)
	}
	answers := [][]Answer{}
	for number, node := range nodes {
		found, err := admit(node)
		if err != nil {
			fmt.Fprintf(os.Stderr, "cpusets: node %d: %v\n", number, err)
			os.Exit(1)
		}
		answers = append(answers, found)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		fmt.Fprintln(os.Stderr, "cpusets:", err)
		os.Exit(1)
	}
}
