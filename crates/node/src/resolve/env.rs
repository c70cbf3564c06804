//! What a container starts with: its environment, command and arguments.
//!
//! Precedence is the kubelet's: sources of `envFrom` in their order, each over the one before; then `env` in its order,
//! each over what is there, its value expanded with what is known so far and with the service variables; then the service
//! variables whose names are free.
//!
//! The order is one that a kubelet could have made (it takes its own from a map) and always the same: variables stand
//! where their name came up first, those of one source of `envFrom` sorted by name; service variables follow, sorted.

mod file;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVar, EnvVarSource, EphemeralContainer, Pod, ResourceRequirements, Service,
};
use vk_provider::{
    Error, Result,
    resolve::{ContainerInputs, Facts, NodeFacts, Reference, ReferenceKind},
};

use super::{
    amounts,
    expansion::expand,
    fields,
    objects::{Needs, Objects, Remark, namespace, remark, unresolved},
    services,
};

/// What has to be read before [`container`] can answer.
pub(crate) fn needs(pod: &Pod, name: &str) -> Result<Needs> {
    let view = View::of(pod, name)?;
    let mut needs = Needs { services: service_links(pod), kubernetes_service: true, ..Needs::default() };
    for source in view.env_from {
        if let Some(map) = &source.config_map_ref {
            needs.config_map(&map.name, map.optional == Some(true));
        } else if let Some(secret) = &source.secret_ref {
            needs.secret(&secret.name, secret.optional == Some(true));
        }
    }
    for source in view.env.iter().filter_map(source) {
        match Source::of(source) {
            Some(Source::ConfigMap { name, optional, .. }) => needs.config_map(name, optional),
            Some(Source::Secret { name, optional, .. }) => needs.secret(name, optional),
            _ => {}
        }
    }
    Ok(needs)
}

/// Environment, command and arguments of a container of any sort. The error is `Unresolved` where something mandatory is
/// missing, `Invalid` where the pod asks for what no kubelet gives.
pub(crate) fn container(
    pod: &Pod,
    name: &str,
    facts: &Facts,
    node: &NodeFacts,
    objects: &Objects,
) -> Result<(ContainerInputs, Vec<Remark>)> {
    let view = View::of(pod, name)?;
    let services: &[Arc<Service>] = &objects.services;
    let services = services::variables(services, namespace(pod), service_links(pod));
    let mut remarks = Vec::new();
    let mut variables = Variables::default();
    for source in view.env_from {
        take_all(&mut variables, pod, source, objects, &mut remarks)?;
    }
    for variable in view.env {
        let value = match (variable.value.as_deref().filter(|value| !value.is_empty()), source(variable)) {
            (Some(value), _) => Some(expand(value, |name| variables.known(name, &services)).into_owned()),
            (None, Some(source)) => match Source::of(source) {
                Some(source) => source.value(pod, &view, facts, node, objects, &mut remarks)?,
                None => Some(String::new()),
            },
            (None, None) => Some(String::new()),
        };
        if let Some(value) = value {
            without_nul(&value, || format!("variable {}", variable.name))?;
            variables.set(&variable.name, value);
        }
    }
    for (name, value) in services {
        variables.add(name, value);
    }
    let expanded = |list: &[String]| -> Option<Vec<String>> {
        let none = BTreeMap::new();
        let text = |text: &String| expand(text, |name| variables.known(name, &none)).into_owned();
        (!list.is_empty()).then(|| list.iter().map(text).collect())
    };
    let (command, args) = (expanded(view.command), expanded(view.args));
    for text in command.iter().chain(&args).flatten() {
        without_nul(text, || "the command line".to_owned())?;
    }
    Ok((ContainerInputs { env: variables.list, command, args }, remarks))
}

/// Whether the pod hears of all services of its namespace; the API server writes `true` where nothing was said.
fn service_links(pod: &Pod) -> bool {
    pod.spec.as_ref().is_none_or(|spec| spec.enable_service_links != Some(false))
}

/// Where the value comes from, when it comes from elsewhere: a value that is written out wins.
fn source(variable: &EnvVar) -> Option<&EnvVarSource> {
    variable.value_from.as_ref().filter(|_| variable.value.as_deref().unwrap_or_default().is_empty())
}

/// The variables so far, in order.
#[derive(Default)]
struct Variables {
    list: Vec<(String, String)>,
    places: HashMap<String, usize>,
}

impl Variables {
    /// Sets a variable, in its old place where it has one.
    fn set(&mut self, name: &str, value: String) {
        match self.places.get(name) {
            Some(place) => self.list[*place].1 = value,
            None => self.add(name.to_owned(), value),
        }
    }

    /// Adds a variable unless there is one of that name.
    fn add(&mut self, name: String, value: String) {
        if !self.places.contains_key(&name) {
            self.places.insert(name.clone(), self.list.len());
            self.list.push((name, value));
        }
    }

    fn known<'a>(&'a self, name: &str, services: &'a BTreeMap<String, String>) -> Option<&'a str> {
        let own = self.places.get(name).map(|place| self.list[*place].1.as_str());
        own.or_else(|| services.get(name).map(String::as_str))
    }
}

/// Whether the operating system takes such a name. A kubelet passes every key on; the API server lets none through that
/// fails here, so this is for objects that came another way.
fn fits(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// The API server takes a byte 0, the kubelet passes it on, and then no runtime can start the container.
fn without_nul(text: &str, what: impl FnOnce() -> String) -> Result<()> {
    if text.contains('\0') {
        return Err(Error::invalid(format!(
            "{} holds a byte 0, with which no program can be started",
            what()
        )));
    }
    Ok(())
}

/// All keys of a ConfigMap or a Secret as variables.
fn take_all(
    variables: &mut Variables,
    pod: &Pod,
    source: &EnvFromSource,
    objects: &Objects,
    remarks: &mut Vec<Remark>,
) -> Result<()> {
    let prefix = source.prefix.as_deref().unwrap_or_default();
    let mut skipped = Vec::new();
    let mut take = |key: &str, value: Option<&str>| {
        let name = format!("{prefix}{key}");
        match value {
            Some(value) if fits(&name) && !value.contains('\0') => variables.set(&name, value.to_owned()),
            _ => skipped.push(name),
        }
    };
    let object = if let Some(reference) = &source.config_map_ref {
        let optional = reference.optional == Some(true);
        let map = objects.config_map(pod, &reference.name, optional, remarks)?;
        for (key, value) in map.and_then(|map| map.data.as_ref()).into_iter().flatten() {
            take(key, Some(value));
        }
        Reference::new(ReferenceKind::ConfigMap, namespace(pod), &reference.name)
    } else if let Some(reference) = &source.secret_ref {
        let optional = reference.optional == Some(true);
        let secret = objects.secret(pod, &reference.name, optional, remarks)?;
        for (key, value) in secret.and_then(|secret| secret.data.as_ref()).into_iter().flatten() {
            take(key, std::str::from_utf8(&value.0).ok());
        }
        Reference::new(ReferenceKind::Secret, namespace(pod), &reference.name)
    } else {
        return Ok(());
    };
    if !skipped.is_empty() {
        skipped.sort();
        remark(remarks, Remark::Skipped { source: object, names: skipped });
    }
    Ok(())
}

/// One of the places that a value can come from.
enum Source<'a> {
    Field(&'a k8s_openapi::api::core::v1::ObjectFieldSelector),
    Amount(&'a k8s_openapi::api::core::v1::ResourceFieldSelector),
    ConfigMap { name: &'a str, key: &'a str, optional: bool },
    Secret { name: &'a str, key: &'a str, optional: bool },
    File(&'a k8s_openapi::api::core::v1::FileKeySelector),
}

impl<'a> Source<'a> {
    fn of(source: &'a EnvVarSource) -> Option<Self> {
        if let Some(field) = &source.field_ref {
            return Some(Self::Field(field));
        }
        if let Some(field) = &source.resource_field_ref {
            return Some(Self::Amount(field));
        }
        if let Some(map) = &source.config_map_key_ref {
            return Some(Self::ConfigMap {
                name: &map.name,
                key: &map.key,
                optional: map.optional == Some(true),
            });
        }
        if let Some(secret) = &source.secret_key_ref {
            let optional = secret.optional == Some(true);
            return Some(Self::Secret { name: &secret.name, key: &secret.key, optional });
        }
        source.file_key_ref.as_ref().map(Self::File)
    }

    /// The value; `None` where it may be missing and is, so that the variable stays as it was.
    fn value(
        &self,
        pod: &Pod,
        view: &View<'_>,
        facts: &Facts,
        node: &NodeFacts,
        objects: &Objects,
        remarks: &mut Vec<Remark>,
    ) -> Result<Option<String>> {
        match self {
            Self::Field(field) => fields::variable(field, pod, facts, node).map(Some),
            Self::Amount(field) => amounts::variable(field, pod, view.resources, node).map(Some),
            Self::ConfigMap { name, key, optional } => {
                let Some(map) = objects.config_map(pod, name, *optional, remarks)? else { return Ok(None) };
                let reference = Reference::new(ReferenceKind::ConfigMap, namespace(pod), *name).key(*key);
                let value = map.data.as_ref().and_then(|data| data.get(*key));
                let value = value.map(|value| text(value.as_bytes(), &reference)).transpose()?;
                present(value, reference, *optional, remarks)
            }
            Self::Secret { name, key, optional } => {
                let Some(secret) = objects.secret(pod, name, *optional, remarks)? else { return Ok(None) };
                let reference = Reference::new(ReferenceKind::Secret, namespace(pod), *name).key(*key);
                let value = secret.data.as_ref().and_then(|data| data.get(*key));
                let value = value.map(|value| text(&value.0, &reference)).transpose()?;
                present(value, reference, *optional, remarks)
            }
            Self::File(file) => file::value(file, pod, facts, remarks),
        }
    }
}

/// The value of a key as a variable can hold it.
fn text(bytes: &[u8], reference: &Reference) -> Result<String> {
    let fault = match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => return Ok(text.to_owned()),
        Ok(_) => "holds a byte 0",
        Err(_) => "is not UTF-8",
    };
    let Reference { kind, namespace, name, key, .. } = reference;
    let key = key.as_deref().unwrap_or_default();
    let message = format!(
        "the value of key {key} in {kind:?} {namespace}/{name} {fault} and cannot be a variable: mount it as a file"
    );
    Err(unresolved(reference.clone(), message))
}

/// The value of a key that may be missing, or must not.
fn present(
    value: Option<String>,
    reference: Reference,
    optional: bool,
    remarks: &mut Vec<Remark>,
) -> Result<Option<String>> {
    if value.is_none() && optional {
        remark(remarks, Remark::Missing(reference));
        return Ok(None);
    }
    value.map(Some).ok_or_else(|| {
        let Reference { kind, namespace, name, key, .. } = &reference;
        let message = format!(
            "couldn't find key {} in {kind:?} {namespace}/{name}",
            key.as_deref().unwrap_or_default()
        );
        unresolved(reference, message)
    })
}

/// What the three sorts of container have in common.
struct View<'a> {
    env: &'a [EnvVar],
    env_from: &'a [EnvFromSource],
    command: &'a [String],
    args: &'a [String],
    resources: Option<&'a ResourceRequirements>,
}

impl<'a> View<'a> {
    fn of(pod: &'a Pod, name: &str) -> Result<Self> {
        let spec = pod.spec.as_ref();
        let init = spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
        let mut containers = spec.iter().flat_map(|spec| &spec.containers).chain(init);
        if let Some(container) = containers.find(|container| container.name == name) {
            return Ok(Self::from(container));
        }
        let mut ephemeral = spec.iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten());
        let found = ephemeral.find(|container| container.name == name).map(Self::from);
        found.ok_or_else(|| Error::invalid(format!("the pod has no container {name:?}")))
    }
}

macro_rules! view {
    ($container:ty) => {
        impl<'a> From<&'a $container> for View<'a> {
            fn from(container: &'a $container) -> Self {
                Self {
                    env: container.env.as_deref().unwrap_or_default(),
                    env_from: container.env_from.as_deref().unwrap_or_default(),
                    command: container.command.as_deref().unwrap_or_default(),
                    args: container.args.as_deref().unwrap_or_default(),
                    resources: container.resources.as_ref(),
                }
            }
        }
    };
}

view!(Container);
view!(EphemeralContainer);

#[cfg(test)]
mod tests;
