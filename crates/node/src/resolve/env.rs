//! Environment, command and arguments of a container.
//!
//! Precedence is the kubelet's: first `envFrom` in order, later sources override earlier ones; then `env` in order, which
//! overrides, with values expanded from the variables so far and the service variables; then service variables whose names
//! are not taken.
//!
//! The order is deterministic and one that a kubelet could produce (its own order comes from a map): each variable is at its
//! first occurrence, the variables of one `envFrom` source are sorted by name, and sorted service variables come last.

mod file;
mod variables;

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVar, EnvVarSource, EphemeralContainer, Pod, ResourceRequirements, Service,
};
use vk_provider::{
    Error, Result,
    resolve::{ContainerInputs, Facts, NodeFacts, Origin, Reference, ReferenceKind, Variable},
};

use self::variables::{ResolvedValue, Variables};
use super::{
    fetched_objects::{FetchedObjects, RequiredObjects, ResolveWarning, add_warning, namespace, unresolved},
    field_ref, resource_field_ref, service_env,
};

/// The objects that [`container`] needs.
pub(crate) fn required_objects(pod: &Pod, name: &str) -> Result<RequiredObjects> {
    let container_fields = ContainerFields::of(pod, name)?;
    let mut required = RequiredObjects {
        services: service_links(pod),
        kubernetes_service: true,
        ..RequiredObjects::default()
    };
    for source in container_fields.env_from {
        if let Some(map) = &source.config_map_ref {
            required.config_map(&map.name, map.optional == Some(true));
        } else if let Some(secret) = &source.secret_ref {
            required.secret(&secret.name, secret.optional == Some(true));
        }
    }
    for source in container_fields.env.iter().filter_map(source) {
        match ValueSource::of(source) {
            Some(ValueSource::ConfigMap { name, optional, .. }) => required.config_map(name, optional),
            Some(ValueSource::Secret { name, optional, .. }) => required.secret(name, optional),
            _ => {}
        }
    }
    Ok(required)
}

/// Environment, command and arguments of a container of any type. The error is `Unresolved` if something mandatory is
/// missing, and `Invalid` if a kubelet would reject the spec too.
pub(crate) fn container(
    pod: &Pod,
    name: &str,
    facts: &Facts,
    node: &NodeFacts,
    objects: &FetchedObjects,
) -> Result<(ContainerInputs, Vec<ResolveWarning>)> {
    let container_fields = ContainerFields::of(pod, name)?;
    let services: &[Arc<Service>] = &objects.services;
    let services: BTreeMap<String, Variable> =
        service_env::variables(services, namespace(pod), service_links(pod))
            .into_iter()
            .map(|(name, value)| (name.clone(), Variable::new(name, value, Origin::Service)))
            .collect();
    let mut warnings = Vec::new();
    let mut variables = Variables::default();
    for source in container_fields.env_from {
        add_all_keys(&mut variables, pod, source, objects, &mut warnings)?;
    }
    for variable in container_fields.env {
        let value = match (variable.value.as_deref().filter(|value| !value.is_empty()), source(variable)) {
            (Some(value), _) => Some(variables.expanded(value, &services)),
            (None, Some(source)) => match ValueSource::of(source) {
                Some(source) => source.value(pod, &container_fields, facts, node, objects, &mut warnings)?,
                None => Some(ResolvedValue::default()),
            },
            (None, None) => Some(ResolvedValue::default()),
        };
        if let Some(value) = value {
            reject_nul(&value.text, || format!("variable {}", variable.name))?;
            variables.set(value.named(&variable.name));
        }
    }
    for variable in services.into_values() {
        variables.add(variable);
    }
    let command = variables.command_line(container_fields.command)?;
    let args = variables.command_line(container_fields.args)?;
    Ok((ContainerInputs { env: variables.into_list(), command, args }, warnings))
}

/// Whether the pod gets variables for all services of its namespace. The API server defaults it to `true`.
fn service_links(pod: &Pod) -> bool {
    pod.spec.as_ref().is_none_or(|spec| spec.enable_service_links != Some(false))
}

/// The source of the value. A literal value takes precedence.
fn source(variable: &EnvVar) -> Option<&EnvVarSource> {
    variable.value_from.as_ref().filter(|_| variable.value.as_deref().unwrap_or_default().is_empty())
}

/// Whether the operating system accepts the name. The kubelet does not check this because the API server rejects such names;
/// the check covers objects that were stored another way.
fn is_valid_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// Rejects NUL bytes. The API server and the kubelet accept them, but no runtime can start the container.
fn reject_nul(text: &str, what: impl FnOnce() -> String) -> Result<()> {
    if text.contains('\0') {
        return Err(Error::invalid(format!(
            "{} contains a NUL byte, so the container cannot be started",
            what()
        )));
    }
    Ok(())
}

/// Adds all keys of a ConfigMap or Secret as variables.
fn add_all_keys(
    variables: &mut Variables,
    pod: &Pod,
    source: &EnvFromSource,
    objects: &FetchedObjects,
    warnings: &mut Vec<ResolveWarning>,
) -> Result<()> {
    let prefix = source.prefix.as_deref().unwrap_or_default();
    let mut skipped = Vec::new();
    let mut add = |key: &str, value: Option<&str>, origin: Origin| {
        let name = format!("{prefix}{key}");
        match value {
            Some(value) if is_valid_name(&name) && !value.contains('\0') => {
                variables.set(Variable::new(name, value, origin));
            }
            _ => skipped.push(name),
        }
    };
    let object = if let Some(reference) = &source.config_map_ref {
        let optional = reference.optional == Some(true);
        let map = objects.config_map(pod, &reference.name, optional, warnings)?;
        for (key, value) in map.and_then(|map| map.data.as_ref()).into_iter().flatten() {
            add(key, Some(value), Origin::ConfigMap);
        }
        Reference::new(ReferenceKind::ConfigMap, namespace(pod), &reference.name)
    } else if let Some(reference) = &source.secret_ref {
        let optional = reference.optional == Some(true);
        let secret = objects.secret(pod, &reference.name, optional, warnings)?;
        for (key, value) in secret.and_then(|secret| secret.data.as_ref()).into_iter().flatten() {
            add(key, std::str::from_utf8(&value.0).ok(), Origin::Secret);
        }
        Reference::new(ReferenceKind::Secret, namespace(pod), &reference.name)
    } else {
        return Ok(());
    };
    if !skipped.is_empty() {
        skipped.sort();
        add_warning(warnings, ResolveWarning::SkippedKeys { source: object, names: skipped });
    }
    Ok(())
}

/// The source of a variable's value.
enum ValueSource<'a> {
    Field(&'a k8s_openapi::api::core::v1::ObjectFieldSelector),
    Resource(&'a k8s_openapi::api::core::v1::ResourceFieldSelector),
    ConfigMap { name: &'a str, key: &'a str, optional: bool },
    Secret { name: &'a str, key: &'a str, optional: bool },
    File(&'a k8s_openapi::api::core::v1::FileKeySelector),
}

impl<'a> ValueSource<'a> {
    fn of(source: &'a EnvVarSource) -> Option<Self> {
        if let Some(field) = &source.field_ref {
            return Some(Self::Field(field));
        }
        if let Some(field) = &source.resource_field_ref {
            return Some(Self::Resource(field));
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

    /// The value; `None` if it is optional and missing, so that the variable is unchanged.
    fn value(
        &self,
        pod: &Pod,
        container_fields: &ContainerFields<'_>,
        facts: &Facts,
        node: &NodeFacts,
        objects: &FetchedObjects,
        warnings: &mut Vec<ResolveWarning>,
    ) -> Result<Option<ResolvedValue>> {
        let (text, origin) = match self {
            Self::Field(field) => {
                let Some(text) = field_ref::variable(field, pod, facts, node)? else {
                    return Ok(Some(ResolvedValue::deferred(&field.field_path)));
                };
                (Some(text), Origin::Field)
            }
            Self::Resource(field) => {
                let text = resource_field_ref::variable(field, pod, container_fields.resources, node)?;
                (Some(text), Origin::Field)
            }
            Self::ConfigMap { name, key, optional } => {
                let Some(map) = objects.config_map(pod, name, *optional, warnings)? else { return Ok(None) };
                let reference = Reference::new(ReferenceKind::ConfigMap, namespace(pod), *name).key(*key);
                let value = map.data.as_ref().and_then(|data| data.get(*key));
                let value = value.map(|value| text(value.as_bytes(), &reference)).transpose()?;
                (check_present(value, reference, *optional, warnings)?, Origin::ConfigMap)
            }
            Self::Secret { name, key, optional } => {
                let Some(secret) = objects.secret(pod, name, *optional, warnings)? else { return Ok(None) };
                let reference = Reference::new(ReferenceKind::Secret, namespace(pod), *name).key(*key);
                let value = secret.data.as_ref().and_then(|data| data.get(*key));
                let value = value.map(|value| text(&value.0, &reference)).transpose()?;
                (check_present(value, reference, *optional, warnings)?, Origin::Secret)
            }
            Self::File(file) => (file::value(file, pod, facts, warnings)?, Origin::File),
        };
        Ok(text.map(|text| ResolvedValue::new(text, origin)))
    }
}

/// The value of a key as text.
fn text(bytes: &[u8], reference: &Reference) -> Result<String> {
    let fault = match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => return Ok(text.to_owned()),
        Ok(_) => "contains a NUL byte",
        Err(_) => "is not UTF-8",
    };
    let Reference { kind, namespace, name, key, .. } = reference;
    let key = key.as_deref().unwrap_or_default();
    let message = format!(
        "the value of key {key} in {kind:?} {namespace}/{name} {fault} and cannot be an environment variable; mount it as a file"
    );
    Err(unresolved(reference.clone(), message))
}

/// Handles a missing key: a warning if it is optional, an error otherwise.
fn check_present(
    value: Option<String>,
    reference: Reference,
    optional: bool,
    warnings: &mut Vec<ResolveWarning>,
) -> Result<Option<String>> {
    if value.is_none() && optional {
        add_warning(warnings, ResolveWarning::MissingOptional(reference));
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

/// The fields that all container types have in common.
struct ContainerFields<'a> {
    env: &'a [EnvVar],
    env_from: &'a [EnvFromSource],
    command: &'a [String],
    args: &'a [String],
    resources: Option<&'a ResourceRequirements>,
}

impl<'a> ContainerFields<'a> {
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

macro_rules! impl_from_container {
    ($container:ty) => {
        impl<'a> From<&'a $container> for ContainerFields<'a> {
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

impl_from_container!(Container);
impl_from_container!(EphemeralContainer);

#[cfg(test)]
mod tests;
