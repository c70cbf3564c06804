//! Values of fields.

use serde_json::{Map, Value, json};

use crate::plan::policy::{
    Literal,
    api_fields::{Shape, api_fields},
};

/// A valid value of a field that differs from the harmless ones.
pub(super) fn of_field(field: &str, harmless: &[Literal]) -> Value {
    let value = known(field).unwrap_or_else(|| {
        let shape = api_fields().shape(field).unwrap_or_else(|| panic!("{field} is not a field of the API"));
        of_shape(shape, field.starts_with("Volume."), 0)
    });
    if harmless.iter().any(|literal| literal.matches(&value)) { other(value) } else { value }
}

/// Gives the empty texts and zeros in a value, which the API types write for mandatory fields, a value.
pub(super) fn fill(value: &mut Value) {
    match value {
        Value::String(text) if text.is_empty() => "sample".clone_into(text),
        Value::Number(number) if number.as_i64() == Some(0) => *value = json!(8080),
        Value::Array(items) => items.iter_mut().for_each(fill),
        Value::Object(fields) => fields.values_mut().for_each(fill),
        _ => {}
    }
}

fn of_shape(shape: &Shape, in_volume: bool, depth: usize) -> Value {
    match shape {
        Shape::Text("Quantity") => json!("1"),
        Shape::Text(name) if name.contains("Time") => json!("2030-01-01T00:00:00Z"),
        Shape::Text(_) => json!("sample"),
        Shape::Number => json!(7),
        Shape::NumberOrText => json!(8080),
        Shape::Bool => json!(true),
        Shape::List(of) => json!([of_shape(of, in_volume, depth)]),
        Shape::Map(of) => json!({"sample": of_shape(of, in_volume, depth)}),
        // An empty volume source is one; elsewhere an empty object is nothing.
        Shape::Object(_) if in_volume || depth > 4 => json!({}),
        Shape::Object(api_type) => {
            let first = api_fields().of(api_type).first();
            let fields =
                first.map(|(name, shape)| ((*name).to_owned(), of_shape(shape, in_volume, depth + 1)));
            Value::Object(fields.into_iter().collect::<Map<_, _>>())
        }
    }
}

fn other(value: Value) -> Value {
    match value {
        Value::Bool(value) => json!(!value),
        Value::Number(number) => json!(number.as_i64().unwrap_or(0) + 1),
        Value::String(_) => json!("other"),
        value => value,
    }
}

/// Values that have to be valid, or that mean more than the general ones.
fn known(field: &str) -> Option<Value> {
    Some(match field {
        "PodSpec.restartPolicy" | "PodSpec.preemptionPolicy" | "Container.restartPolicy" => json!("Never"),
        "PodSpec.dnsPolicy" => json!("Default"),
        "PodSpec.dnsConfig" => json!({"nameservers": ["10.0.0.10"]}),
        "PodSpec.os" => json!({"name": "linux"}),
        "PodSpec.hostAliases" => json!([{"ip": "10.0.0.9", "hostnames": ["db.example"]}]),
        "PodSpec.imagePullSecrets" => json!([{"name": "pull"}]),
        "PodSpec.initContainers" => json!([{"name": "setup", "image": "registry.example/setup:1"}]),
        "PodSpec.ephemeralContainers" => json!([{"name": "debug", "image": "registry.example/debug:1"}]),
        "PodSpec.securityContext" | "Container.securityContext" => json!({"runAsUser": 1000}),
        "PodSpec.resources" | "Container.resources" => {
            json!({"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": "4", "memory": "8Gi"}})
        }
        "PodSpec.resources.limits"
        | "PodSpec.resources.requests"
        | "Container.resources.limits"
        | "Container.resources.requests"
        | "PodSpec.overhead" => json!({"cpu": "4", "memory": "8Gi"}),
        "PodSpec.tolerations" => json!([{"key": "sample", "operator": "Exists"}]),
        "PodSpec.affinity" => {
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "sample"}]}})
        }
        "PodSpec.topologySpreadConstraints" => {
            json!([{"maxSkew": 1, "topologyKey": "sample", "whenUnsatisfiable": "DoNotSchedule"}])
        }
        "PodSecurityContext.sysctls" => json!([{"name": "net.core.somaxconn", "value": "1024"}]),
        "PodSecurityContext.fsGroupChangePolicy" => json!("OnRootMismatch"),
        "PodSecurityContext.supplementalGroupsPolicy" => json!("Strict"),
        "PodSecurityContext.seLinuxChangePolicy" => json!("Recursive"),
        "PodSecurityContext.seccompProfile"
        | "SecurityContext.seccompProfile"
        | "PodSecurityContext.appArmorProfile"
        | "SecurityContext.appArmorProfile" => json!({"type": "RuntimeDefault"}),
        "SecurityContext.capabilities" => json!({"add": ["NET_ADMIN"]}),
        "SecurityContext.capabilities.add" | "SecurityContext.capabilities.drop" => json!(["NET_ADMIN"]),
        "SecurityContext.procMount" => json!("Unmasked"),
        "Container.name" => json!("other"),
        "Container.image" => json!("registry.example/other:2"),
        "Container.imagePullPolicy" => json!("Always"),
        "Container.terminationMessagePolicy" => json!("FallbackToLogsOnError"),
        "Container.env" => json!([{"name": "SAMPLE", "value": "sample"}]),
        "Container.envFrom" => json!([{"configMapRef": {"name": "sample"}}]),
        "Container.ports" => json!([{"containerPort": 8080}]),
        "Container.resizePolicy" => json!([{"resourceName": "cpu", "restartPolicy": "NotRequired"}]),
        "Container.volumeDevices" => json!([{"name": "data", "devicePath": "/dev/sample"}]),
        "Container.livenessProbe" | "Container.readinessProbe" | "Container.startupProbe" => {
            json!({"tcpSocket": {"port": 8080}})
        }
        "Container.lifecycle" => json!({"preStop": {"exec": {"command": ["true"]}}}),
        "Lifecycle.postStart" | "Lifecycle.preStop" => json!({"exec": {"command": ["true"]}}),
        "Lifecycle.stopSignal" => json!("SIGINT"),
        "Probe.exec" | "LifecycleHandler.exec" => json!({"command": ["true"]}),
        "Probe.grpc"
        | "Probe.httpGet"
        | "Probe.tcpSocket"
        | "LifecycleHandler.httpGet"
        | "LifecycleHandler.tcpSocket" => json!({"port": 8080}),
        "Probe.httpGet.scheme" | "LifecycleHandler.httpGet.scheme" => json!("HTTPS"),
        "Container.terminationMessagePath"
        | "Container.workingDir"
        | "Probe.httpGet.path"
        | "LifecycleHandler.httpGet.path" => json!("/sample"),
        "Volume.configMap" => json!({"name": "sample"}),
        "Volume.secret" => json!({"secretName": "sample"}),
        "Volume.projected" => json!({"sources": [{"configMap": {"name": "sample"}}]}),
        "Volume.downwardAPI" => {
            json!({"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]})
        }
        "Volume.emptyDir.medium" => json!("Memory"),
        "Volume.hostPath" => json!({"path": "/sample"}),
        "VolumeMount.mountPropagation" => json!("HostToContainer"),
        "VolumeMount.recursiveReadOnly" => json!("IfPossible"),
        _ => return None,
    })
}
