//! The variables of a container while they are resolved.

use std::collections::{BTreeMap, HashMap};

use vk_provider::{
    Result,
    resolve::{CommandLine, Deferred, Origin, Variable},
};

use super::{super::expansion::expand, reject_nul};

/// The value of a variable, or a word of a command line.
#[derive(Default)]
pub(super) struct ResolvedValue {
    pub(super) text: String,
    origin: Origin,
    deferred: Option<Deferred>,
}

/// The variables so far, in order.
#[derive(Default)]
pub(super) struct Variables {
    list: Vec<Variable>,
    positions: HashMap<String, usize>,
}

// === impl ResolvedValue ===

impl ResolvedValue {
    pub(super) fn new(text: String, origin: Origin) -> Self {
        Self { text, origin, deferred: None }
    }

    /// The address that this field will have.
    pub(super) fn deferred(field: &str) -> Self {
        let deferred = Some(Deferred { field: field.to_owned(), whole: true });
        Self { text: String::new(), origin: Origin::Field, deferred }
    }

    pub(super) fn named(self, name: &str) -> Variable {
        Variable { name: name.to_owned(), value: self.text, origin: self.origin, deferred: self.deferred }
    }
}

// === impl Variables ===

impl Variables {
    pub(super) fn into_list(self) -> Vec<Variable> {
        self.list
    }

    /// Sets a variable. An existing variable keeps its position.
    pub(super) fn set(&mut self, variable: Variable) {
        match self.positions.get(&variable.name) {
            Some(index) => self.list[*index] = variable,
            None => self.add(variable),
        }
    }

    /// Adds a variable unless the name is taken.
    pub(super) fn add(&mut self, variable: Variable) {
        if !self.positions.contains_key(&variable.name) {
            self.positions.insert(variable.name.clone(), self.list.len());
            self.list.push(variable);
        }
    }

    fn get<'a>(&'a self, name: &str, services: &'a BTreeMap<String, Variable>) -> Option<&'a Variable> {
        let own = self.positions.get(name).map(|index| &self.list[*index]);
        own.or_else(|| services.get(name))
    }

    /// Expands the references in a text. The result is as sensitive as what was expanded into it.
    pub(super) fn expanded(&self, text: &str, services: &BTreeMap<String, Variable>) -> ResolvedValue {
        let (mut origin, mut deferred) = (Origin::Literal, None::<Deferred>);
        let expanded = expand(text, |name| {
            let variable = self.get(name, services)?;
            origin = origin.max(variable.origin);
            if let (None, Some(missing)) = (&deferred, &variable.deferred) {
                let alone = text.len() == name.len() + "$()".len();
                deferred = Some(Deferred { field: missing.field.clone(), whole: missing.whole && alone });
            }
            Some(&variable.value)
        });
        ResolvedValue { text: expanded.into_owned(), origin, deferred }
    }

    /// Expands a command or arguments with the whole environment; `None` if there are none.
    pub(super) fn command_line(&self, words: &[String]) -> Result<Option<CommandLine>> {
        if words.is_empty() {
            return Ok(None);
        }
        let (mut line, none) = (CommandLine::default(), BTreeMap::new());
        for word in words {
            let word = self.expanded(word, &none);
            reject_nul(&word.text, || "the command line".to_owned())?;
            line.words.push(word.text);
            line.origin = line.origin.max(word.origin);
            line.deferred = line.deferred.or(word.deferred);
        }
        // A word is only a part of the line.
        line.deferred.iter_mut().for_each(|deferred| deferred.whole = false);
        Ok(Some(line))
    }
}
