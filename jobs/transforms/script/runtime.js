// What stands around a script in its VM: closed intrinsics before it, rows in and columns out beside it.
//
// Everything that is used after the script was loaded is taken here first or is frozen by then, so that nothing which the script
// does to its world changes how rows go in and come out. Limits of time and memory are the engine's and the process's (child.py).
(function $hr_runtime(settings) {
  'use strict';
  const { fixed, deterministic, mostRows, mostText } = JSON.parse(settings), flush = mostText / 4;
  const { parse, stringify } = JSON;
  const { freeze, getOwnPropertyDescriptor, getPrototypeOf, defineProperty, is, keys } = Object;
  const { ownKeys, apply, construct } = Reflect;
  const { isArray } = Array;
  const { isSafeInteger, isFinite, isInteger } = Number;
  // By names of their own: a script may declare the usual ones at its top level, where this code would find them too.
  const RealDate = Date, BigNumber = BigInt, Text = String, Numeric = Number, Bytes = Uint8Array, world = globalThis;
  const Failure = TypeError, Deep = RangeError, Internal = InternalError;
  const clock = Date.now;
  const isoText = RealDate.prototype.toISOString;
  const tagOf = Object.prototype.toString;
  const wellFormed = String.prototype.isWellFormed;
  const matches = RegExp.prototype.test;
  const compile = Function;

  // ---- a world without clock, chance and traces -------------------------------------------------------------------------

  const nothing = () => undefined;
  globalThis.console = { log: nothing, info: nothing, warn: nothing, error: nothing, debug: nothing, trace: nothing };
  if (deterministic) {
    const Fixed = function Date(...given) {
      if (new.target === undefined) return Text(new RealDate(fixed));
      return construct(RealDate, given.length ? given : [fixed], new.target);
    };
    defineProperty(Fixed, 'prototype', { value: RealDate.prototype });
    defineProperty(RealDate.prototype, 'constructor', { value: Fixed });
    Fixed.now = () => fixed;
    Fixed.parse = RealDate.parse;
    Fixed.UTC = RealDate.UTC;
    globalThis.Date = Fixed;
    Math.random = function $hr_chance() {
      throw new Failure('Math.random gives other rows in a replay; a script that needs it says `deterministic: false`');
    };
    for (const name of ['performance', 'WeakRef', 'FinalizationRegistry']) delete globalThis[name];
  }

  // A frozen property of a prototype cannot be assigned in an object below it, though `error.name = ...` is common. Where that is so
  // an accessor stands in its place, which lets the object have its own.
  function $hr_assignable(prototype) {
    for (const key of ownKeys(prototype)) {
      const found = getOwnPropertyDescriptor(prototype, key);
      if (!('value' in found) || !found.configurable) continue;
      const { value } = found;
      defineProperty(prototype, key, {
        get() { return value; },
        set(own) {
          if (this === prototype) throw new Failure(`${Text(key)} of a built-in cannot be changed`);
          defineProperty(this, key, { value: own, writable: true, enumerable: true, configurable: true });
        },
        enumerable: found.enumerable,
        configurable: false,
      });
    }
  }
  for (const kind of [Error, EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError]) $hr_assignable(kind.prototype);
  $hr_assignable(Object.prototype);

  function $hr_close(roots) {
    const seen = new Set();
    const open = [...roots];
    while (open.length) {
      const at = open.pop();
      if ((typeof at !== 'object' && typeof at !== 'function') || at === null || seen.has(at)) continue;
      seen.add(at);
      if (at !== globalThis) freeze(at);
      open.push(getPrototypeOf(at));
      for (const key of ownKeys(at)) {
        const found = getOwnPropertyDescriptor(at, key);
        open.push(found.value, found.get, found.set);
      }
    }
  }
  $hr_close([
    globalThis, function* () {}, async function () {}, async function* () {}, (function* () {})(), (async function* () {})(),
    [].values(), new Map().entries(), new Set().values(), ''[Symbol.iterator](), 'a'.matchAll(/a/g), [].values().map((x) => x),
    Iterator.from({ next() { return { done: true }; } }), getPrototypeOf(Int8Array),
  ]);

  // ---- rows in ----------------------------------------------------------------------------------------------------------

  const named = (name) => (name === '__proto__' ? '["__proto__"]' : stringify(name));

  function $hr_decoder(spec) {
    switch (spec.as) {
      case 'int': return (v) => (typeof v === 'string' ? ((n) => (isSafeInteger(n) ? n : BigNumber(v)))(Numeric(v)) : v);
      case 'float': return (v) => (typeof v === 'string' ? Numeric(v) : v);
      case 'list': { const item = $hr_decoder(spec.item); return (v) => (v === null ? v : v.map(item)); }
      case 'map': {
        const item = $hr_decoder(spec.item);
        return (v) => { if (v !== null) for (const key of ownKeys(v)) $hr_put(v, key, item(v[key])); return v; };
      }
      case 'struct': {
        const fields = spec.fields.map((field) => [field.name, $hr_decoder(field)]);
        return (v) => { if (v !== null) for (const [key, decode] of fields) $hr_put(v, key, decode(v[key])); return v; };
      }
      default: return (v) => v;
    }
  }
  function $hr_put(target, key, value) {
    defineProperty(target, key, { value, writable: true, enumerable: true, configurable: true });
  }

  // ---- rows out ---------------------------------------------------------------------------------------------------------

  class Refused extends Error {
    constructor(message) { super(message); defineProperty(this, 'name', { value: 'Refused' }); }
  }

  function $hr_kind(v) {
    if (v === null) return 'null';
    if (typeof v === 'string') return `a text of ${v.length} characters`;
    if (typeof v === 'number' || typeof v === 'boolean') return Text(v);
    if (typeof v === 'bigint') return 'a BigInt';
    if (isArray(v)) return 'an array';
    return typeof v === 'object' ? 'an object' : `a ${typeof v}`;
  }
  function $hr_refuse(spec, v, why) {
    throw new Refused(`${spec.where ?? `column \`${spec.name}\``} is ${spec.spelling}, which cannot hold ${$hr_kind(v)}${why ? ': ' + why : ''}`);
  }

  const DIGITS = /^-?\d{1,400}$/, DECIMAL = /^-?\d*\.?\d*(?:[eE][-+]?\d{1,3})?$/, HEX = /^(?:[0-9a-fA-F]{2})*$/;
  const DAY = /^\d{4}-\d{2}-\d{2}$/;
  const MOMENT = /^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6}0*)?)?(?:Z|[-+]\d{2}:?\d{2})?$/, ZONE = /(?:Z|[-+]\d{2}:?\d{2})$/;
  const test = (pattern, text) => apply(matches, pattern, [text]);

  function $hr_text(spec, v) {
    if (typeof v === 'object') v = $hr_json(spec, v);
    else if (typeof v === 'symbol' || typeof v === 'function') $hr_refuse(spec, v);
    const text = typeof v === 'string' ? v : Text(v);
    if (!apply(wellFormed, text, [])) $hr_refuse(spec, v, 'it holds half of a surrogate pair');
    return text;
  }
  function $hr_json(spec, v) {
    let text;
    try {
      text = stringify(v, (key, inner) => (typeof inner === 'bigint' ? Text(inner) : inner));
    } catch (error) {
      if (error instanceof Deep || error instanceof Internal) throw error;
      throw new Refused(`${spec.where ?? `column \`${spec.name}\``}: ${$hr_message(error)}`);
    }
    return text === undefined ? $hr_refuse(spec, v) : text;
  }
  // The digits of a number without an exponent, as [sign, before, behind].
  function $hr_digits(text) {
    const [mantissa, exponent] = text.toLowerCase().split('e');
    const sign = mantissa.startsWith('-') ? '-' : '';
    let [before, behind = ''] = (sign ? mantissa.slice(1) : mantissa).split('.');
    const shift = exponent === undefined ? 0 : Numeric(exponent);
    if (shift > 0) { behind = behind.padEnd(shift, '0'); before += behind.slice(0, shift); behind = behind.slice(shift); }
    if (shift < 0) { before = before.padStart(-shift, '0'); behind = before.slice(shift) + behind; before = before.slice(0, shift); }
    return [sign, before.replace(/^0+/, ''), behind.replace(/0+$/, '')];
  }

  function $hr_encoder(spec) {
    const refuse = (v, why) => $hr_refuse(spec, v, why);
    switch (spec.as) {
      case 'int': {
        const low = BigNumber(spec.low), high = BigNumber(spec.high), least = Numeric(spec.low), most = Numeric(spec.high);
        return (v) => {
          if (typeof v === 'number') {
            if (isSafeInteger(v) && v >= least && v <= most) return v;
            return refuse(v, isInteger(v) && !isSafeInteger(v) ? 'beyond 2^53 a number is not exact, return a BigInt or its digits' : '');
          }
          if (typeof v === 'string' && test(DIGITS, v)) v = BigNumber(v);
          if (typeof v !== 'bigint' || v < low || v > high) return refuse(v, typeof v === 'bigint' ? 'it is out of range' : '');
          return spec.digits || !isSafeInteger(Numeric(v)) ? Text(v) : Numeric(v);
        };
      }
      case 'digits': {
        const integer = $hr_encoder({ ...spec, as: 'int', digits: true });
        return (v) => { const found = integer(v); return typeof found === 'number' ? Text(BigNumber(found)) : found; };
      }
      case 'float': return (v) => {
        if (typeof v === 'bigint') v = Numeric(v);
        if (typeof v === 'string' && (v === 'NaN' || v === 'Infinity' || v === '-Infinity')) v = Numeric(v);
        if (typeof v !== 'number') return refuse(v);
        return isFinite(v) && !is(v, -0) ? v : is(v, -0) ? '-0' : Text(v);
      };
      case 'bool': return (v) => (typeof v === 'boolean' ? v : refuse(v));
      case 'decimal': return (v) => {
        if (typeof v === 'bigint' || (typeof v === 'number' && isFinite(v))) v = Text(v);
        if (typeof v !== 'string' || !test(DECIMAL, v) || !test(/\d/, v)) return refuse(v);
        const [sign, before, behind] = $hr_digits(v);
        if (before.length > spec.before || behind.length > spec.scale) return refuse(v, 'it has too many digits');
        const text = `${before || '0'}${behind ? '.' + behind : ''}`;
        return text === '0' ? text : sign + text;
      };
      case 'date': return (v) => {
        if (v instanceof RealDate) v = apply(isoText, v, []).slice(0, 10);
        return typeof v === 'string' && test(DAY, v) ? v : refuse(v, 'dates are texts such as 2013-01-31');
      };
      case 'timestamp': return (v) => {
        if (v instanceof RealDate) v = apply(isoText, v, []);
        if (typeof v === 'string' && test(DAY, v)) v += 'T00:00:00';
        if (typeof v !== 'string' || !test(MOMENT, v)) return refuse(v, 'times are texts such as 2013-01-31T05:00:00Z, or Date');
        const zoned = test(ZONE, v.slice(10));
        if (zoned && !spec.zone) return v.endsWith('Z') ? v.slice(0, -1) : refuse(v, 'this column has no time zone');
        return zoned || !spec.zone ? v : v + 'Z';
      };
      case 'binary': return (v) => {
        if (v instanceof Bytes) v = $hr_hex(v);
        if (typeof v === 'string' && v.startsWith('0x')) v = v.slice(2);
        return typeof v === 'string' && test(HEX, v) ? v : refuse(v, 'bytes are hexadecimal text, or a Uint8Array');
      };
      case 'list': {
        const item = $hr_nullable(spec.item);
        return (v) => {
          if (!isArray(v)) return refuse(v);
          const parts = [];
          for (let n = 0; n < v.length; n++) parts.push(stringify(item(v[n])));
          return `[${parts.join(',')}]`;
        };
      }
      case 'map': {
        const item = $hr_nullable(spec.item);
        return (v) => {
          if (typeof v !== 'object' || isArray(v)) return refuse(v);
          return `[${keys(v).map((key) => `{"key":${stringify(key)},"value":${stringify(item(v[key]))}}`).join(',')}]`;
        };
      }
      case 'struct': {
        const fields = spec.fields.map((field) => [field.name, stringify(field.name), $hr_nullable(field)]);
        return (v) => {
          if (typeof v !== 'object' || isArray(v)) return refuse(v);
          return `{${fields.map(([key, shown, encode]) => `${shown}:${stringify(encode(v[key]))}`).join(',')}}`;
        };
      }
      default: return (v) => $hr_text(spec, v);
    }
  }
  function $hr_hex(bytes) {
    let text = '';
    for (let n = 0; n < bytes.length; n++) text += Numeric(bytes[n]).toString(16).padStart(2, '0');
    return text;
  }
  // Inside of nested values every leaf is text, and every nested value JSON in text: the host parses level by level.
  function $hr_nullable(spec) {
    const encode = $hr_encoder(spec);
    return (v) => { if (v === null || v === undefined) return null; const found = encode(v); return typeof found === 'string' ? found : Text(found); };
  }

  // ---- the loop ---------------------------------------------------------------------------------------------------------

  let process, makeRow, makeEmit, emit, encoders, inputs, width;
  let columns = [], count = 0, at = 0, size = 0, failed = null;
  let outRow = [], outSub = [], outOp = [], out = [], special = [];

  function $hr_reset() {
    outRow = []; outSub = []; outOp = []; out = encoders.map(() => []); special = encoders.map(() => false); size = 0;
    emit = makeEmit(out, columns, $hr_slow, isSafeInteger, isFinite);
  }

  // A value that is not plainly one of its column's: looked at by the column's encoder.
  function $hr_slow(k, v) {
    const found = encoders[k](v);
    if (typeof found === 'string') { size += found.length; special[k] = true; }
    return found;
  }

  // One function with a line per column is far quicker than a loop over columns. Names are quoted by stringify; what is plain is decided
  // here: an untouched text of the same column, a small whole number, an ordinary float.
  function $hr_line(spec, k) {
    const get = `v = row[${stringify(spec.name)}]; if (v === undefined || v === null) o${k}.push(null); else `;
    const slow = `o${k}.push(slow(${k}, v));`;
    const from = inputs.indexOf(spec.name);
    const same = spec.same && from >= 0 ? ` && v === i${from}[at]` : '';
    if (spec.as === 'string') return `${get}if (typeof v === 'string' && (v.isWellFormed())) { n += v.length; o${k}.push(v); } else ${slow}`;
    if (spec.as === 'int') {
      const inside = `v >= ${spec.low} && v <= ${spec.high}`;
      return `${get}if (typeof v === 'number' && safe(v) && ${inside}) o${k}.push(v); else ${slow}`;
    }
    if (spec.as === 'float') return `${get}if (typeof v === 'number' && finite(v) && v !== 0) o${k}.push(v); else ${slow}`;
    if (same && ['decimal', 'date', 'timestamp', 'binary', 'digits'].includes(spec.as)) {
      return `${get}if (typeof v === 'string'${same}) { n += v.length; o${k}.push(v); } else ${slow}`;
    }
    return get + slow;
  }

  function $hr_shape(text) {
    const given = parse(text), { outputs } = given;
    inputs = given.inputs.map((one) => one.name);
    encoders = outputs.map($hr_encoder);
    width = 8 * outputs.length;
    // One literal with all keys is far quicker than a loop over them.
    makeRow = compile('c', 'i', `"use strict"; return {${inputs.map((name, k) => `${named(name)}: c[${k}][i]`).join(', ')}};`);
    const taken = [...outputs.map((_, k) => `o${k} = o[${k}]`), ...inputs.map((_, k) => `i${k} = c[${k}]`), 'none = 0'].join(', ');
    const lines = outputs.map($hr_line).join('\n');
    makeEmit = compile('o', 'c', 'slow', 'safe', 'finite', `"use strict"; const ${taken}; return (row, at) => { let v, n = 0; ${lines} return n; };`);
    $hr_reset();
  }

  function $hr_start(given) {
    if (given === undefined || given === null) throw new Refused('there is no function `process(input)` or `invoke(data)` in it');
    const tag = apply(tagOf, given, []);
    if (tag !== '[object Function]') {
      throw new Refused('`process` must be a plain function, not async and no generator: nothing in the sandbox can be waited for');
    }
    process = given;
    if (deterministic) freeze(world);
  }

  function $hr_load(text) {
    const [data, decode] = parse(text);
    columns = data; at = 0;
    count = columns.length ? columns[columns.length - 1].length : 0;
    for (const [index, spec] of decode) {
      const decoder = $hr_decoder(spec);
      columns[index] = columns[index].map((v) => (v === null ? v : decoder(v)));
    }
    $hr_reset();
    return count;
  }

  function $hr_emit(row, number, op) {
    if (typeof row !== 'object' || row === null || isArray(row)) {
      throw new Refused(`a row must be an object, and \`process\` returned ${$hr_kind(row)}`);
    }
    const own = row._gs_op;
    if (own !== undefined && own !== null) {
      if (own !== 'i' && own !== 'u' && own !== 'd') throw new Refused(`\`_gs_op\` must be i, u or d, and is ${$hr_kind(own)}`);
      op = own;
    }
    size += width + emit(row, at);
    outRow.push(at); outSub.push(number); outOp.push(op);
  }

  function $hr_one() {
    const row = makeRow(columns, at), op = row._gs_op, before = size;
    const found = process(row);
    if (found === null || found === undefined) return;
    if (!isArray(found)) {
      if (typeof found === 'object') $hr_plain(found);
      $hr_emit(found, 0, op);
    } else {
      const { length } = found;
      if (!isSafeInteger(length) || length < 0 || length > mostRows) throw new Refused(`it makes ${length} rows of one, and ${mostRows} are allowed`);
      for (let n = 0; n < length; n++) {
        const one = found[n];
        if (one !== null && one !== undefined) $hr_emit(one, n, op);
        if (size - before > mostText) break;
      }
    }
    if (size - before > mostText) throw new Refused(`what it makes of one row is longer than ${mostText} characters`);
  }
  function $hr_plain(found) {
    const tag = apply(tagOf, found, []);
    if (tag === '[object Promise]') throw new Refused('`process` returned a Promise; nothing in the sandbox can be waited for, return the row itself');
    if (tag === '[object Map]' || tag === '[object Set]' || tag === '[object Date]') {
      throw new Refused(`a row must be an object, and \`process\` returned a ${tag.slice(8, -1)}`);
    }
  }

  function $hr_message(error) {
    try {
      if (typeof error !== 'object' || error === null) return `it threw ${$hr_kind(error)}`;
      const name = error.name, message = error.message;
      const text = `${typeof name === 'string' ? name.slice(0, 80) : 'Error'}: ${typeof message === 'string' ? message.slice(0, 400) : ''}`;
      return text.toWellFormed();
    } catch { return 'it threw something that cannot be read'; }
  }
  function $hr_failure(error) {
    let stack = '';
    try { if (!(error instanceof Refused) && typeof error.stack === 'string') stack = error.stack.slice(0, 4000).toWellFormed(); } catch { stack = ''; }
    return { row: at, text: error instanceof Refused ? error.message.slice(0, 600).toWellFormed() : $hr_message(error), stack };
  }

  function $hr_step(budget, most) {
    const until = clock() + budget;
    let rows = 0;
    while (at < count) {
      try { $hr_one(); } catch (error) { failed = $hr_failure(error); return 'failed'; }
      at++;
      if (size > flush) return at < count ? 'full' : 'done';
      if (++rows >= most || clock() >= until) return at < count ? 'more' : 'done';
    }
    return 'done';
  }

  function $hr_take() {
    const parts = [stringify(special), '\n{"row":', stringify(outRow), ',"sub":', stringify(outSub), ',"op":', stringify(outOp)];
    for (let k = 0; k < out.length; k++) {
      parts.push(`,"c${k}":`, stringify(special[k] ? out[k].map((v) => (v === null ? v : Text(v))) : out[k]));
    }
    parts.push('}');
    $hr_reset();
    return parts.join(''); // not by `+`, whose ropes the host cannot read
  }

  return function $hr_command(what, first, second) {
    switch (what) {
      case 'shape': return $hr_shape(first);
      case 'start': return $hr_start(first);
      case 'load': return $hr_load(first);
      case 'step': return $hr_step(first, second);
      case 'take': return $hr_take();
      case 'failure': return stringify(failed);
      default: return at;
    }
  };
})
