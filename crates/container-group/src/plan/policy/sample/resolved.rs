//! What a sample refers to.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, PodSpec, Volume};
use vk_provider::resolve::{
    Claim, CommandLine, ContainerInputs, Deferred, File, FileSet, Origin, PullCredentials, Variable,
};

use crate::backend::ResolvedPod;

/// Fields that are not known before the group exists.
const ADDRESSES: [&str; 2] = ["status.podIP", "status.podIPs"];

/// A pod with everything that it refers to: variables with a value have it, the pod's addresses are not known yet, other variables and files
/// have the text `sample`, claims an empty volume, and images a login if the pod has pull secrets.
pub fn resolved(pod: Pod) -> ResolvedPod {
    let spec = pod.spec.clone().unwrap_or_default();
    let all = || spec.init_containers.iter().flatten().chain(&spec.containers);
    let containers = all().map(|container| (container.name.clone(), inputs(container))).collect();
    let volumes = || spec.volumes.iter().flatten();
    let files = volumes().filter_map(|volume| Some((volume.name.clone(), files(volume)?))).collect();
    let is_claim = |volume: &&Volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some();
    let claim = || Claim { claim: Arc::default(), volume: Arc::default() };
    let claims = volumes().filter(is_claim).map(|volume| (volume.name.clone(), claim())).collect();
    let credentials = credentials(&spec);
    ResolvedPod { pod: Arc::new(pod), containers, files, claims, credentials }
}

fn inputs(container: &Container) -> ContainerInputs {
    let literal = container.env.iter().flatten().map(variable);
    let sources = container.env_from.iter().flatten();
    let env =
        sources.map(|_| Variable::new("FROM_SOURCE", "sample", Origin::ConfigMap)).chain(literal).collect();
    ContainerInputs {
        env,
        command: container.command.clone().map(CommandLine::literal),
        args: container.args.clone().map(CommandLine::literal),
    }
}

fn variable(variable: &EnvVar) -> Variable {
    let source = variable.value_from.as_ref();
    let origin = match source {
        None => Origin::Literal,
        Some(source) if source.secret_key_ref.is_some() => Origin::Secret,
        Some(source) if source.field_ref.is_some() || source.resource_field_ref.is_some() => Origin::Field,
        Some(_) => Origin::ConfigMap,
    };
    let text = variable.value.clone().unwrap_or_else(|| "sample".to_owned());
    let mut resolved = Variable::new(&variable.name, text, origin);
    let field = source.and_then(|source| source.field_ref.as_ref());
    if let Some(field) = field.filter(|field| ADDRESSES.contains(&field.field_path.as_str())) {
        resolved.value.clear();
        resolved.deferred = Some(Deferred { field: field.field_path.clone(), whole: true });
    }
    resolved
}

fn files(volume: &Volume) -> Option<FileSet> {
    let (mode, origin) = if let Some(source) = &volume.config_map {
        (source.default_mode, Origin::ConfigMap)
    } else if let Some(source) = &volume.secret {
        (source.default_mode, Origin::Secret)
    } else if let Some(source) = &volume.downward_api {
        (source.default_mode, Origin::Field)
    } else {
        (volume.projected.as_ref()?.default_mode, Origin::ConfigMap)
    };
    let mode = mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(0o644);
    let files = BTreeMap::from([("sample".to_owned(), File::new("sample", mode, origin))]);
    Some(FileSet { files, expires: None })
}

fn credentials(spec: &PodSpec) -> BTreeMap<String, Vec<PullCredentials>> {
    if spec.image_pull_secrets.as_ref().is_none_or(Vec::is_empty) {
        return BTreeMap::new();
    }
    let images = spec.init_containers.iter().flatten().chain(&spec.containers);
    let login = || vec![PullCredentials::basic("registry.example", "sample", "sample".to_owned())];
    images.filter_map(|container| Some((container.image.clone()?, login()))).collect()
}
