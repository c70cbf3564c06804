//! What becomes of a pod, for `virtual-kubelet explain-pod`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use vk_container_group::{
    GroupBackend as _,
    backend::{CallError, Class, Plan},
    cloud::Limits,
    plan::{
        Diagnostics,
        explanation::OfflinePod,
        files,
        policy::Outcome,
        size::{self, Resources},
    },
};
use vk_provider::{
    Context,
    explanation::{
        BackendAnswer, ExplainRequest, Explanation, FieldPolicy, FileUsage, PriceEstimate, SizeChoice,
    },
    requests::ResourceList,
};
use vk_supervisor::Clock;

use crate::{
    backend::EciBackend,
    config::{Prices, Settings},
    connection::{Connection, price_source, translator},
    fields::FIELDS,
    translate::{EciRequest, FILE_LIMITS, file_volumes},
};

/// Explains a pod. Calls are made only if the request asks for them.
pub(crate) async fn explain(settings: &Settings, context: &Context, request: &ExplainRequest) -> Explanation {
    let OfflinePod { resolved, not_read } = OfflinePod::new(Arc::clone(&request.pod));
    let (plan, diagnostics) = translator(settings, context).translate(&resolved);
    let mut explanation = Explanation {
        place: Some(settings.region.clone()),
        size: Some(size_choice(&request.pod, &plan)),
        not_read,
        ..Explanation::default()
    };
    let volumes = file_volumes(&resolved, &mut Diagnostics::default());
    let usage = files::usage(&volumes);
    explanation.files = (usage.volumes > 0).then_some(FileUsage {
        volumes: usage.volumes,
        bytes: usage.bytes as u64,
        limit: Some(FILE_LIMITS.group as u64),
    });
    add_fields(&mut explanation, &request.pod, settings, &diagnostics);
    let backend = Connection::new(settings, Limits::default(), &Clock::system()).backend(settings, context);
    explanation.price = Some(price(&backend, settings, &plan, request.ask_backend).await);
    if request.ask_backend && !diagnostics.is_refused() {
        explanation.backend = Some(answer(backend.dry_run(&plan).await));
    }
    explanation
}

fn add_fields(explanation: &mut Explanation, pod: &Pod, settings: &Settings, diagnostics: &Diagnostics) {
    let review = FIELDS.review(pod, &settings.fields);
    for field in &review.fields {
        let policy = match field.outcome {
            Outcome::Native => FieldPolicy::Native,
            Outcome::Emulated => FieldPolicy::Emulated,
            Outcome::Ignored => FieldPolicy::Ignored,
            Outcome::Refused => FieldPolicy::Refused,
            Outcome::Elsewhere => FieldPolicy::Elsewhere,
        };
        explanation.push(field.path.clone(), policy, numbered(pod, &field.path, &field.result));
    }
    for error in diagnostics.errors() {
        let mut rows = explanation.fields.iter_mut();
        match rows.find(|row| row.field == error.field && row.policy == FieldPolicy::Refused) {
            Some(row) => row.result.clone_from(&error.message),
            None => explanation.refuse(&error.field, error.message.clone()),
        }
    }
    for warning in diagnostics.warnings() {
        let message = warning.message.strip_prefix("ignored: ").unwrap_or(&warning.message);
        explanation.warn(&warning.field, message);
    }
}

/// The parameter with the number of the container.
fn numbered(pod: &Pod, path: &str, parameter: &str) -> String {
    let nothing = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&nothing);
    let lists = [
        ("spec.containers[", "Container", spec.containers.as_slice()),
        ("spec.initContainers[", "InitContainer", spec.init_containers.as_deref().unwrap_or_default()),
    ];
    for (prefix, name, containers) in lists {
        let container = path.strip_prefix(prefix).and_then(|rest| rest.split_once(']'));
        let at = container.and_then(|(container, _)| containers.iter().position(|one| one.name == container));
        if let Some(at) = at {
            return parameter.replace("Container.N", &format!("{name}.{}", at + 1));
        }
    }
    parameter.to_owned()
}

fn size_choice(pod: &Pod, plan: &Plan<EciRequest>) -> SizeChoice {
    let requested = size::requested(pod);
    let total = requested.total;
    let given = plan.size.clone();
    let is_nothing = total.cpu.to_nano() == 0 && total.memory.to_nano() == 0;
    let named = plan.placements.iter().any(|placement| placement.size.is_some());
    let reason = match &given {
        None => "larger than the largest ECI size",
        Some(_) if named => "as the annotations of the pod name it",
        Some(_) if is_nothing => "the default of ECI: nothing is requested",
        Some(size) if (size.cpu, size.memory) == (total.cpu, total.memory) => "as requested",
        Some(_) => "next larger ECI size",
    };
    let init = requested.init.map(list);
    SizeChoice { requested: list(total), init, given, reason: reason.to_owned() }
}

fn list(Resources { cpu, memory }: Resources) -> ResourceList {
    let all = [("cpu".to_owned(), cpu), ("memory".to_owned(), memory)];
    all.into_iter().filter(|(_, amount)| amount.to_nano() > 0).collect()
}

async fn price(
    backend: &EciBackend,
    settings: &Settings,
    plan: &Plan<EciRequest>,
    ask: bool,
) -> PriceEstimate {
    let source = match price_source(&settings.prices) {
        Ok(source) => source,
        Err(why) => return PriceEstimate::Unknown(why.to_owned()),
    };
    if settings.prices == Prices::Cloud && !ask {
        return PriceEstimate::Unknown("the service knows it: use --ask-cloud".to_owned());
    }
    let Some(size) = &plan.size else {
        return PriceEstimate::Unknown("there is no size".to_owned());
    };
    match backend.price(size).await {
        Ok(Some(price)) => PriceEstimate::Known { price, source: source.to_owned() },
        Ok(None) => PriceEstimate::Unknown("the service names no price for this size".to_owned()),
        Err(error) => PriceEstimate::Unknown(error.to_string()),
    }
}

fn answer(dry_run: Result<(), CallError>) -> BackendAnswer {
    match dry_run {
        Ok(()) => BackendAnswer::Accepted("the dry run of CreateContainerGroup passed".to_owned()),
        Err(CallError {
            class:
                Class::Invalid
                | Class::OutOfStock
                | Class::ZoneOutOfStock
                | Class::QuotaExceeded
                | Class::Unsupported,
            message,
        }) => BackendAnswer::Refused(message.into_owned()),
        Err(error) => BackendAnswer::Failed(error.to_string()),
    }
}
