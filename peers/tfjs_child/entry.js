// Reads one JSON request per line, runs that kernel on the CPU backend, writes one JSON answer per line.
import '@tensorflow/tfjs-backend-cpu';

import * as tf from '@tensorflow/tfjs-core';
import readline from 'node:readline';

const ARRAYS = {float32: Float32Array, int32: Int32Array, bool: Uint8Array};

function decode({dtype, shape, data}) {
  const bytes = Uint8Array.from(Buffer.from(data, 'base64'));
  return tf.tensor(new ARRAYS[dtype](bytes.buffer), shape, dtype);
}

function encode(tensor) {
  const values = tensor.dataSync();
  const data = Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString('base64');
  return {dtype: tensor.dtype, shape: tensor.shape, data};
}

let prepared;  // a call to be done again and again, by who wants to know how long it takes

function answer({kernel, inputs, attributes, prepare, again}) {
  if (prepare) {
    const tensors = Object.fromEntries(Object.entries(inputs).map(([name, value]) => [name, decode(value)]));
    prepared = () => tf.dispose(tf.engine().runKernel(kernel, tensors, attributes));
    return {};
  }
  if (again) {
    prepared();
    return {};
  }
  return tf.tidy(() => {
    const tensors = Object.fromEntries(Object.entries(inputs).map(([name, value]) => [name, decode(value)]));
    return encode(tf.engine().runKernel(kernel, tensors, attributes));
  });
}

tf.setBackend('cpu');
readline.createInterface({input: process.stdin}).on('line', (line) => {
  let result;
  try {
    result = answer(JSON.parse(line));
  } catch (error) {
    result = {error: String(error.message)};
  }
  process.stdout.write(JSON.stringify(result) + '\n');
});
